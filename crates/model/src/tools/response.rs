//! The text of the shell tools for the model.

/// What a shell tool answers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Response {
    /// What the command wrote, or what went wrong.
    pub output: String,
    /// The command's exit code, once it is over.
    pub exit_code: Option<i64>,
    /// The id to go on with, while it runs.
    pub process_id: Option<i64>,
    /// How many tokens there were, if the output was cut.
    pub original_token_count: Option<i64>,
}

impl Response {
    /// An answer that only says something.
    pub(super) fn saying(output: impl Into<String>, exit_code: Option<i64>) -> Self {
        Self { output: output.into(), exit_code, ..Self::default() }
    }

    /// The text, with the name of this piece of output and the time the call took.
    ///
    /// ```
    /// use bastide_model::tools::Response;
    ///
    /// let response = Response { output: "hi\n".into(), exit_code: Some(0), ..Response::default() };
    /// let text = response.text("c0ffee", 0.25);
    /// assert_eq!(
    ///     text,
    ///     "Chunk ID: c0ffee\nWall time: 0.2500 seconds\nProcess exited with code 0\nOutput:\nhi\n",
    /// );
    /// ```
    #[must_use]
    pub fn text(&self, chunk_id: &str, wall_time_s: f64) -> String {
        let mut lines =
            vec![format!("Chunk ID: {chunk_id}"), format!("Wall time: {wall_time_s:.4} seconds")];
        if let Some(code) = self.exit_code {
            lines.push(format!("Process exited with code {code}"));
        }
        if let Some(id) = self.process_id {
            lines.push(format!("Process running with session ID {id}"));
        }
        if let Some(count) = self.original_token_count {
            lines.push(format!("Original token count: {count}"));
        }
        lines.push(format!("Output:\n{}", self.output));
        lines.join("\n")
    }
}

/// Both streams of a command as one text, the errors last and on a line of their own.
#[must_use]
pub fn normalize_output(stdout: &[u8], stderr: &[u8]) -> String {
    let (out, err) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    let apart = if out.is_empty() || err.is_empty() || out.ends_with('\n') { "" } else { "\n" };
    [&out, apart, &err].concat()
}

/// `output` with a notice above it.
#[must_use]
pub fn prepend_notice(output: &str, notice: &str) -> String {
    let apart = if output.is_empty() { "" } else { "\n" };
    [notice, apart, output].concat()
}
