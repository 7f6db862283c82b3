//! Runs the programs of `cpu/tests/cpu/legacy_modes` as a BIOS on QEMU's software CPU and on Bochs.
//! Their reports must be those that the tests of our software CPU expect. Bochs checks segment
//! limits, which QEMU ignores.

#[path = "../../cpu/tests/cpu/legacy_modes/programs/mod.rs"]
mod programs;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use programs::image::{Image, reported};
use vbts_tests::skips;

/// Time limit of a program on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A machine to compare with.
struct Reference {
    name: &'static str,
    program: &'static str,
    /// Arguments for a machine whose BIOS is `rom.bin` in this directory. The function may write
    /// other files there.
    arguments: fn(&Path) -> std::io::Result<Vec<String>>,
    /// Held while the machine runs, if only one of its kind can run at a time.
    alone: Option<&'static Mutex<()>>,
}

/// Two instances of Bochs that start together can both bind the port of their display
/// (SO_REUSEADDR). The second one that listens on it then exits.
static BOCHS: Mutex<()> = Mutex::new(());

const REFERENCES: &[Reference] = &[
    Reference {
        name: "qemu",
        program: "qemu-system-x86_64",
        arguments: qemu,
        alone: None,
    },
    Reference {
        name: "bochs",
        program: "bochs",
        arguments: bochs,
        alone: Some(&BOCHS),
    },
];

fn qemu(directory: &Path) -> std::io::Result<Vec<String>> {
    let line = "-accel tcg -cpu max -M pc -m 16 -nodefaults -display none -no-reboot \
                -debugcon stdio -device isa-debug-exit,iobase=0xf4,iosize=1 -bios";
    let mut arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    arguments.push(directory.join("rom.bin").display().to_string());
    Ok(arguments)
}

fn bochs(directory: &Path) -> std::io::Result<Vec<String>> {
    // Bochs needs a VGA BIOS and a display. The display "rfb" does not wait for a viewer. Its
    // debugger needs a command to continue.
    let mut vga = vec![0; 512];
    vga[..3].copy_from_slice(&[0x55, 0xAA, 1]);
    fs::write(directory.join("vga.bin"), vga)?;
    fs::write(directory.join("commands"), "c\n")?;
    let at = directory.display();
    let settings = format!(
        "romimage: file={at}/rom.bin, address=0xffff0000\n\
         vgaromimage: file={at}/vga.bin\n\
         cpu: model=core2_penryn_t9600, reset_on_triple_fault=0\n\
         megs: 16\n\
         display_library: rfb, options=\"timeout=0\"\n\
         port_e9_hack: enabled=1\n\
         sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy\n\
         log: -\n\
         panic: action=fatal\n\
         error: action=ignore\n\
         info: action=ignore\n"
    );
    fs::write(directory.join("bochsrc"), settings)?;
    Ok(vec![
        "-q".into(),
        "-f".into(),
        format!("{at}/bochsrc"),
        "-rc".into(),
        format!("{at}/commands"),
    ])
}

/// Number of attempts to start a machine. Bochs needs a port of the host, which another program may
/// use.
const ATTEMPTS: usize = 3;

fn run(reference: &Reference, image: &Image) -> Result<(), Failed> {
    let _alone = reference
        .alone
        .map(|alone| alone.lock().unwrap_or_else(PoisonError::into_inner));
    let mut complaints = String::new();
    for _ in 0..ATTEMPTS {
        let printed = attempt(reference, image, &mut complaints)?;
        let Some((mut words, unfinished)) = reported(&printed) else {
            continue;
        };
        if unfinished {
            // The machine's own output at its end follows.
            words.truncate(image.expected.len());
        }
        return Ok(image.check(&words, unfinished)?);
    }
    Err(format!("the program reported nothing\n{complaints}").into())
}

/// Runs the image on `reference`. Returns its output, and adds the machine's own messages to
/// `complaints`.
fn attempt(
    reference: &Reference,
    image: &Image,
    complaints: &mut String,
) -> Result<Vec<u8>, Failed> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    fs::write(directory.join("rom.bin"), &image.rom)?;
    let (stdout, stderr) = (directory.join("stdout"), directory.join("stderr"));
    let mut child = Command::new(reference.program)
        .args((reference.arguments)(directory)?)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&stdout)?)
        .stderr(fs::File::create(&stderr)?)
        .spawn()?;
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Err(format!("the machine did not end in {} s", LIMIT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    complaints.push_str(&String::from_utf8_lossy(&fs::read(&stderr)?));
    Ok(fs::read(&stdout)?)
}

/// The reason why a reference machine cannot run, or `None`.
fn missing(reference: &Reference) -> Option<String> {
    let found = Command::new(reference.program)
        .arg("--help")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found
        .err()
        .map(|error| format!("{}: {error}", reference.program))
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for reference in REFERENCES {
        let missing = missing(reference);
        for (name, image) in programs::all() {
            let excuse = image.excuse(reference.name).map(str::to_owned);
            let skipped = missing.clone().or(excuse);
            let title = format!("{}::{name}", reference.name);
            trials.push(Trial::ignorable_test(
                title.clone(),
                move || match &skipped {
                    Some(why) => Ok(skips::ignored(&title, why)),
                    None => run(reference, &image).map(|()| Completion::Completed),
                },
            ));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
