//! CommonMark to HTML.
use std::fmt::Write as _;
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(30);
    let mut page = String::new();
    for section in 0..60 {
        let (title, text, cell) = (random.text(20), random.text(600), random.below(999));
        let title = title.replace('\n', " ");
        let _ = write!(
            page,
            "## {title}\n\n{text}\n\n* *one* `two`\n* [three](four \"five\") <&> ~~six~~\n\n\
             | a | b |\n|---|--:|\n| {cell} | **{section}** |\n\n```c\nint x;\n```\n\n"
        );
    }
    let mut html = String::new();
    let parser = pulldown_cmark::Parser::new_ext(&page, pulldown_cmark::Options::all());
    pulldown_cmark::html::push_html(&mut html, parser);
    report("html", &html);
}
