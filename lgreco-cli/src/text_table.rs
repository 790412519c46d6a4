//! Tables as text.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// A text table. The first column is aligned left, all other columns right. Empty columns are left out.
pub struct Rows {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    /// Starts a table with these column names.
    pub fn new(head: &[&'static str]) -> Self {
        Rows { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, one cell per column.
    pub fn add<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.head.len());
        self.rows.push(cells.into());
    }

    /// The table as text. Every line ends with a newline.
    pub fn render(&self) -> String {
        let shown: Vec<usize> =
            (0..self.head.len()).filter(|&column| self.rows.iter().any(|row| !row[column].is_empty())).collect();
        let mut table = Table::new();
        table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
        table.set_header(shown.iter().map(|&column| self.head[column]).collect::<Vec<_>>());
        for row in &self.rows {
            table.add_row(shown.iter().map(|&column| &row[column]).collect::<Vec<_>>());
        }
        for (place, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if place > 0 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
        lines.concat()
    }
}
