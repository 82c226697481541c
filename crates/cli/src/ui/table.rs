//! Tables.

use anstyle::Style;

use super::escaped;

const TITLE: Style = Style::new().bold();

/// Rows of the same kind.
#[derive(Debug)]
pub(crate) struct Table {
    titles: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: &[&'static str]) -> Self {
        Self { titles: titles.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| escaped(&cell).into_owned()).collect());
    }

    /// Aligned, with titles.
    pub(crate) fn for_people(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let cells = cells.map(|cell| cell.chars().count());
            cells.chain(self.titles.get(column).map(|title| title.len())).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.titles.len()).map(width).collect();
        let aligned = |cells: Vec<&str>| {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut text = format!("{TITLE}{}{TITLE:#}\n", aligned(self.titles.clone()));
        for row in &self.rows {
            text.push_str(&aligned(row.iter().map(String::as_str).collect()));
            text.push('\n');
        }
        text
    }

    /// One row a line, cells apart by tabs, and nothing else.
    pub(crate) fn for_programs(&self) -> String {
        self.rows.iter().map(|row| format!("{}\n", row.join("\t"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_for_people_and_keeps_plain_for_programs() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(["a".to_owned(), "running".to_owned()]);
        table.row(["long\u{1b}[2J".to_owned(), "x".to_owned()]);
        let people = "ID           STATE\na            running\nlong\\x1b[2J  x\n";
        let shown = table.for_people().replace(&format!("{TITLE}"), "");
        assert_eq!(shown.replace(&format!("{TITLE:#}"), ""), people);
        assert_eq!(table.for_programs(), "a\trunning\nlong\\x1b[2J\tx\n");
    }
}
