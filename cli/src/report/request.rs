//! A report that `vbts trace --report` asks for: its name and its options, in one value.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as _, FromArgMatches as _};

use super::ReportArgs;
use super::kinds::{Opt, kind};

/// The file of the trace, which is not known yet.
const TRACE: &str = "TRACE";

/// A report of a trace that does not exist yet.
#[derive(Debug, Clone)]
pub(crate) struct ReportRequest(ReportArgs);

impl ReportRequest {
    /// The report `what` without options.
    pub(crate) fn of(what: &'static super::Kind) -> Self {
        Self(ReportArgs::new(what, TRACE.into()))
    }

    /// The name of the report.
    pub(crate) fn name(&self) -> &'static str {
        self.0.what.name
    }

    /// Whether it compares two traces.
    pub(crate) fn compares(&self) -> bool {
        self.0.what.options.contains(&Opt::Other)
    }

    /// Whether it compares the trace with another one that it names.
    pub(crate) fn names_other(&self) -> bool {
        self.0.other.is_some()
    }

    /// The file that it is written to, or `-`.
    pub(crate) fn output(&self) -> Option<&Path> {
        self.0.output.as_deref()
    }

    /// The report of `trace`, in the file `output` if it has no other. `against` is the trace of
    /// another run, which comes first.
    pub(crate) fn of_trace(
        &self,
        trace: &Path,
        output: Option<&Path>,
        against: Option<&Path>,
    ) -> ReportArgs {
        let mut args = self.0.clone();
        match against.filter(|_| args.other.is_none()) {
            Some(first) => (args.file, args.other) = (first.into(), Some(trace.into())),
            None => {
                // The last file is the trace.
                let last = args.other.as_mut().unwrap_or(&mut args.file);
                *last = trace.into();
            }
        }
        args.output = args.output.or_else(|| output.map(PathBuf::from));
        args
    }
}

/// The parser of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReportParser;

impl TypedValueParser for ReportParser {
    type Value = ReportRequest;

    fn parse_ref(
        &self,
        cmd: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<ReportRequest, clap::Error> {
        let refuse = |reason: String| {
            let mut error = clap::Error::new(ErrorKind::ValueValidation).with_cmd(cmd);
            if let Some(arg) = arg {
                let option = ContextValue::String(arg.to_string());
                error.insert(ContextKind::InvalidArg, option);
            }
            let value = ContextValue::String(value.to_string_lossy().into_owned());
            error.insert(ContextKind::InvalidValue, value);
            error.insert(
                ContextKind::Suggested,
                ContextValue::StyledStrs(vec![reason.into()]),
            );
            error
        };
        let words = value.to_str().and_then(shlex::split);
        let Some(words) = words.filter(|words| !words.is_empty()) else {
            return Err(refuse("a report has a name, and options after it".into()));
        };
        // A mistyped name gets the message of an option with these values.
        let (name, options) = words
            .split_first()
            .map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
        kind().parse_ref(cmd, arg, OsStr::new(name))?;
        let report = ReportArgs::augment_args(clap::Command::new("vbts report"));
        let all = ["vbts report", name].into_iter().map(str::to_owned);
        let all = all.chain(options.iter().cloned()).chain([TRACE.to_owned()]);
        let args = report
            .try_get_matches_from(all)
            .and_then(|matches| ReportArgs::from_arg_matches(&matches));
        let reason = |error: String| {
            let first = error.lines().next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        };
        let args = args.map_err(|error| refuse(reason(error.to_string())))?;
        args.check_options()
            .map_err(|error| refuse(error.to_string()))?;
        Ok(ReportRequest(args))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values: Vec<PossibleValue> = kind().possible_values()?.collect();
        Some(Box::new(values.into_iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<ReportRequest, String> {
        let parsed = ReportParser.parse_ref(&clap::Command::new("x"), None, OsStr::new(value));
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_has_the_options_of_a_report() {
        let request = parse("functions --limit 5 --output 'a b'").unwrap();
        let args = request.of_trace(Path::new("t"), None, None);
        assert_eq!((args.what.name, args.limit), ("functions", Some(5)));
        assert_eq!(args.file, Path::new("t"));
        assert_eq!(request.output(), Some(Path::new("a b")));
        let diff = parse("diff good.btrace").unwrap();
        let args = diff.of_trace(Path::new("t"), Some(Path::new("o")), None);
        assert_eq!(
            (args.file, args.other),
            ("good.btrace".into(), Some("t".into()))
        );
        assert_eq!(args.output, Some("o".into()));
        let diff = parse("diff").unwrap();
        let args = diff.of_trace(Path::new("t"), None, Some(Path::new("first")));
        assert_eq!((args.file, args.other), ("first".into(), Some("t".into())));
    }

    #[test]
    fn mistakes_in_a_request_are_named() {
        for (value, message) in [
            ("function", "tip: a similar value exists: 'functions'"),
            ("functions --limitt 5", "--limitt"),
            (
                "functions --steps 5",
                "--steps: `vbts report functions` has no such option",
            ),
            ("functions 'a", "a report has a name"),
            ("", "a report has a name"),
        ] {
            let error = parse(value).unwrap_err();
            assert!(error.contains(message), "{value}: {error}");
        }
    }
}
