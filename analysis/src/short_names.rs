//! Short forms of demangled names, without parameters, results and the arguments of templates.

/// Beginning of the name of an operator.
const OPERATOR: &str = "operator";
/// The symbols of operators of C++ with several characters, longer ones first.
const SYMBOLS: [&str; 24] = [
    "<=>", "<<=", ">>=", "->*", "()", "[]", "==", "!=", "<=", ">=", "<<", ">>", "&&", "||", "++",
    "--", "+=", "-=", "*=", "/=", "%=", "^=", "|=", "->",
];
/// Text in the place of arguments.
const LEFT_OUT: &str = "<…>";

/// The short form of a name: `std::vector<…>::push_back` of
/// `void std::vector<int, std::allocator<int> >::push_back(int&&)`.
pub(crate) fn short(name: &str) -> String {
    let mut short = String::new();
    // Where the part after the result of a function begins.
    let mut start = 0;
    let mut rest = name;
    let (mut after_operator, mut has_parameters) = (false, false);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let after_word = short.ends_with(is_word);
        let has_arguments = after_word || short.ends_with("::") || after_operator;
        let mut size = first.len_utf8();
        match first {
            'o' if !after_word && is_operator(rest) => {
                size = operator_size(rest);
                short.push_str(rest.get(..size).unwrap_or(rest));
                let after = rest.get(size..).unwrap_or_default();
                // `operator<< <int>`
                size += usize::from(after.starts_with(" <"));
                after_operator = true;
                rest = rest.get(size..).unwrap_or_default();
                continue;
            }
            // In Rust, `<T as Trait>::method` begins with one.
            '<' if has_arguments => {
                size = bracketed(rest, '<', '>');
                short.push_str(LEFT_OUT);
            }
            '<' => {
                size = bracketed(rest, '<', '>');
                short.push_str(rest.get(..size).unwrap_or(rest));
            }
            '(' if rest.starts_with("(anonymous namespace)") => {
                size = bracketed(rest, '(', ')');
                short.push_str("(anonymous namespace)");
            }
            '(' if short.len() > start => {
                has_parameters = true;
                break;
            }
            '{' => {
                size = bracketed(rest, '{', '}');
                short.push_str(rest.get(..size).unwrap_or(rest));
            }
            ' ' => {
                short.push(' ');
                start = short.len();
            }
            _ => short.push(first),
        }
        after_operator = false;
        rest = rest.get(size..).unwrap_or_default();
    }
    match short.get(start..) {
        // What comes before the name is the type of the result.
        Some(name) if has_parameters => name.into(),
        _ => short,
    }
}

/// Returns whether `text` begins with the name of an operator.
fn is_operator(text: &str) -> bool {
    let after = text
        .strip_prefix(OPERATOR)
        .and_then(|rest| rest.chars().next());
    after.is_some_and(|c| !c.is_alphanumeric() && c != '_')
}

/// The size in bytes of the name of an operator, such as `operator<<` or `operator new`.
fn operator_size(text: &str) -> usize {
    let rest = text.get(OPERATOR.len()..).unwrap_or_default();
    let symbols = match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
        Some(symbol) => symbol.len(),
        // The name of a type, or `new`.
        None if rest.starts_with(' ') => rest.find(['(', '<']).unwrap_or(rest.len()),
        None => rest.chars().next().map_or(0, char::len_utf8),
    };
    OPERATOR.len() + symbols
}

/// The size in bytes of what is in brackets at the beginning of `text`, with them; all, if they do
/// not end.
fn bracketed(text: &str, open: char, close: char) -> usize {
    let mut depth = 0_usize;
    let mut last = ' ';
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close && !(close == '>' && last == '-') {
            depth -= 1;
            if depth == 0 {
                return at + c.len_utf8();
            }
        }
        last = c;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_has_no_arguments() {
        for (name, expected) in [
            ("main", "main"),
            ("main.cold", "main.cold"),
            ("f(int, char const*)", "f"),
            ("_IO_puts@plt", "_IO_puts@plt"),
            (
                "void std::vector<int, std::allocator<int> >::push_back(int&&)",
                "std::vector<…>::push_back",
            ),
            ("Square::area(long) const", "Square::area"),
            (
                "std::ostream& operator<< <char>(std::ostream&, char)",
                "operator<<<…>",
            ),
            ("bool operator==<char>(a<char> const&)", "operator==<…>"),
            ("A::operator()(int) const", "A::operator()"),
            ("operator new(unsigned long)", "operator new"),
            ("f(int) [clone .constprop.0]", "f"),
            (
                "v8::(anonymous namespace)::Run(v8::Isolate*)",
                "v8::(anonymous namespace)::Run",
            ),
            (
                "main::{lambda(int)#1}::operator()(int) const",
                "main::{lambda(int)#1}::operator()",
            ),
            (
                "<core::slice::iter::Iter<T> as core::iter::Iterator>::fold",
                "<core::slice::iter::Iter<T> as core::iter::Iterator>::fold",
            ),
            ("call_once<fn() -> u8, ()>", "call_once<…>"),
            (
                "std::panic::catch_unwind::<A, i32>",
                "std::panic::catch_unwind::<…>",
            ),
            (
                "std::rt::lang_start::{{closure}}",
                "std::rt::lang_start::{{closure}}",
            ),
            ("int Words.count(java.util.List)", "Words.count"),
            ("JS:*count /words.js:1:15", "JS:*count /words.js:1:15"),
            ("f [clone .cold]", "f [clone .cold]"),
            ("unended<a", "unended<…>"),
            ("", ""),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
    }
}
