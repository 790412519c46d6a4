//! Pages for a browser. Each page is one file that loads no other files.

mod plan;
mod table;

pub(crate) use plan::drawn;
pub use plan::{of_file, of_plan};
pub(crate) use table::{Cell, table};

use crate::chart::{Svg, dark_rules, escaped, variables};

/// A page under construction.
pub(crate) struct Page {
    title: String,
    refresh: Option<u32>,
    body: String,
}

/// Widths of a drawing in pixels, on wide screens and on phones.
pub(crate) const WIDTHS: [f64; 2] = [840.0, 336.0];

impl Page {
    /// An empty page with this heading.
    pub(crate) fn new(title: &str) -> Page {
        Page { title: title.into(), refresh: None, body: String::new() }
    }

    /// Makes browsers reload the page after this many seconds.
    pub(crate) fn refresh(&mut self, seconds: u32) {
        self.refresh = Some(seconds);
    }

    /// Adds a list of names and their descriptions.
    pub(crate) fn facts<'a>(&mut self, facts: impl IntoIterator<Item = (&'a str, &'a str)>) {
        self.body += "<dl>\n";
        for (name, value) in facts {
            self.body += &format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value));
        }
        self.body += "</dl>\n";
    }

    /// Adds a heading with a note below it. The note may be empty.
    pub(crate) fn section(&mut self, heading: &str, note: &str) {
        self.body += &format!("<h2>{}</h2>\n", escaped(heading));
        if !note.is_empty() {
            self.body += &format!("<p>{}</p>\n", escaped(note));
        }
    }

    /// Adds a drawing in both widths, for wide screens and for phones. `label` describes the drawing for screen
    /// readers.
    pub(crate) fn drawing(&mut self, label: &str, draw: impl Fn(f64) -> Svg) {
        for (class, width) in ["wide", "narrow"].into_iter().zip(WIDTHS) {
            self.body += &format!("<div class=\"{class}\">\n{}</div>\n", draw(width).element_of_page(label));
        }
    }

    /// Adds HTML without escaping it.
    pub(crate) fn html(&mut self, html: &str) {
        self.body += html;
    }

    /// The whole page, as HTML that is also valid XML.
    pub(crate) fn finish(&self) -> String {
        let title = escaped(&self.title);
        let refresh =
            self.refresh.map_or_else(String::new, |s| format!("<meta http-equiv=\"refresh\" content=\"{s}\"/>\n"));
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'\"/>\n{refresh}<title>{title}</title>\n\
             <style>\n:root {{ {} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {} }} {} }}\n{}</style>\n</head>\n\
             <body>\n<h1>{title}</h1>\n{}<footer>lgreco {}</footer>\n<script>\n{}</script>\n</body>\n</html>\n",
            variables(false),
            variables(true),
            dark_rules(),
            include_str!("page.css"),
            self.body,
            env!("CARGO_PKG_VERSION"),
            include_str!("sort.js"),
        )
    }
}
