//! A table that readers can sort.

use crate::chart::escaped;

/// A cell of a table.
pub(crate) enum Cell {
    /// Sorted as text.
    Text(String),
    /// A cell that is sorted by its number. Cells without a number come last.
    Number(Option<f64>, String),
}

impl Cell {
    /// A cell with a whole number.
    pub(crate) fn count(number: u64) -> Cell {
        Cell::Number(Some(number as f64), crate::units::grouped(number))
    }

    fn html(&self) -> String {
        match self {
            Cell::Text(text) => format!("<td class=\"text\">{}</td>", escaped(text)),
            Cell::Number(Some(number), text) if number.is_finite() => {
                format!("<td data-value=\"{number:e}\">{}</td>", escaped(text))
            }
            Cell::Number(_, text) => format!("<td>{}</td>", escaped(text)),
        }
    }
}

/// A table with these columns. The cells of the first row determine whether a column is sorted as text or by number.
/// Columns in which all cells are empty are left out.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[Cell; N]]) -> String {
    let text = |cell: &Cell| match cell {
        Cell::Text(text) | Cell::Number(_, text) => !text.is_empty(),
    };
    let shown: Vec<usize> = (0..N).filter(|&column| rows.iter().any(|row| text(&row[column]))).collect();
    let mut html = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for &column in &shown {
        let kind = match rows.first().map(|row| &row[column]) {
            Some(Cell::Number(..)) => " data-kind=\"number\"",
            _ => " class=\"text\"",
        };
        html += &format!("<th{kind}><button>{}</button></th>", escaped(head[column]));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in rows {
        html += "<tr>";
        html.extend(shown.iter().map(|&column| row[column].html()));
        html += "</tr>\n";
    }
    html + "</tbody>\n</table></div>\n"
}
