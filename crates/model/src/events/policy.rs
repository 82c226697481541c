//! How much of an event may be said.

use std::collections::HashMap;

use serde_json::Value;

use super::event::{Event, Finish};
use crate::error::Result;
use crate::lax::{Checked, Dump, FromInput, Input, Object};

/// Choices about what events say; one that is not made is left to a wider policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PayloadPolicy {
    /// Whether to say what commands wrote; not unless chosen.
    pub include_exec_output: Option<bool>,
    /// How many characters of it; 8000 unless chosen.
    pub max_stdout_chars: Option<i128>,
    /// How many characters of standard error; 8000 unless chosen.
    pub max_stderr_chars: Option<i128>,
    /// Whether to say how long written files are; yes unless chosen.
    pub include_write_len: Option<bool>,
}

/// What a policy comes to once every choice is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectivePolicy {
    /// Whether to say what commands wrote.
    pub include_exec_output: bool,
    /// How many characters of it.
    pub max_stdout_chars: i128,
    /// How many characters of standard error.
    pub max_stderr_chars: i128,
    /// Whether to say how long written files are.
    pub include_write_len: bool,
}

impl PayloadPolicy {
    /// This policy where `narrower` leaves the choice to it.
    #[must_use]
    pub fn overlaid(self, narrower: Self) -> Self {
        Self {
            include_exec_output: narrower.include_exec_output.or(self.include_exec_output),
            max_stdout_chars: narrower.max_stdout_chars.or(self.max_stdout_chars),
            max_stderr_chars: narrower.max_stderr_chars.or(self.max_stderr_chars),
            include_write_len: narrower.include_write_len.or(self.include_write_len),
        }
    }

    /// The policy for one operation and one sink: the sink's choices win over those for the
    /// operation, and those over the general ones.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use bastide_model::events::PayloadPolicy;
    ///
    /// let shown = PayloadPolicy { include_exec_output: Some(true), ..PayloadPolicy::default() };
    /// let by_op = HashMap::from([("exec".to_owned(), shown)]);
    /// let policy = PayloadPolicy::default().for_sink(&by_op, "exec", None);
    /// assert!(policy.include_exec_output);
    /// ```
    #[must_use]
    pub fn for_sink(
        self,
        by_op: &HashMap<String, Self>,
        op: &str,
        sink: Option<Self>,
    ) -> EffectivePolicy {
        let for_op = by_op.get(op).copied().unwrap_or_default();
        self.overlaid(for_op).overlaid(sink.unwrap_or_default()).effective()
    }

    /// The policy with every choice made.
    #[must_use]
    pub fn effective(self) -> EffectivePolicy {
        EffectivePolicy {
            include_exec_output: self.include_exec_output.unwrap_or(false),
            max_stdout_chars: self.max_stdout_chars.unwrap_or(8000),
            max_stderr_chars: self.max_stderr_chars.unwrap_or(8000),
            include_write_len: self.include_write_len.unwrap_or(true),
        }
    }
}

impl EffectivePolicy {
    /// The event as a sink under this policy may see it. Output that may not be said is not even
    /// copied.
    #[must_use]
    pub fn apply(&self, event: &Event) -> Event {
        let mut shown = Event {
            span_id: event.span_id.clone(),
            parent_span_id: event.parent_span_id.clone(),
            trace_id: event.trace_id.clone(),
            data: event.data.clone(),
            finish: event.finish.as_ref().map(|finish| self.shown(finish)),
            ..*event
        };
        if !self.include_write_len {
            shown.data.shift_remove("bytes");
        }
        shown
    }

    fn shown(&self, finish: &Finish) -> Finish {
        let quiet = Finish {
            error_type: finish.error_type.clone(),
            error_message: finish.error_message.clone(),
            stdout: None,
            stderr: None,
            stdout_bytes: None,
            stderr_bytes: None,
            ..*finish
        };
        if !self.include_exec_output {
            return quiet;
        }
        let said = |bytes: &Option<Vec<u8>>, text: &Option<String>, limit: i128| match bytes {
            Some(bytes) => Some(safe_decode(bytes, limit)),
            None => text.clone(),
        };
        Finish {
            stdout: said(&finish.stdout_bytes, &finish.stdout, self.max_stdout_chars),
            stderr: said(&finish.stderr_bytes, &finish.stderr, self.max_stderr_chars),
            stdout_bytes: finish.stdout_bytes.clone(),
            stderr_bytes: finish.stderr_bytes.clone(),
            ..quiet
        }
    }
}

/// Bytes as text of at most `max_chars` characters, and `…` where there were more.
#[must_use]
pub fn safe_decode(bytes: &[u8], max_chars: i128) -> String {
    let text = String::from_utf8_lossy(bytes);
    let limit = usize::try_from(max_chars.max(0)).unwrap_or(usize::MAX);
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

impl FromInput for PayloadPolicy {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("EventPayloadPolicy")?;
        let flag = |input: Input<'_>| bool::from_input(input).map(Some);
        let include_exec_output = fields.or_with("include_exec_output", None, flag);
        let max_stdout_chars = fields.or_with("max_stdout_chars", None, length);
        let max_stderr_chars = fields.or_with("max_stderr_chars", None, length);
        let include_write_len = fields.or_with("include_write_len", None, flag);
        fields.build(|| {
            Some(Self {
                include_exec_output: include_exec_output?,
                max_stdout_chars: max_stdout_chars?,
                max_stderr_chars: max_stderr_chars?,
                include_write_len: include_write_len?,
            })
        })
    }
}

fn length(input: Input<'_>) -> Checked<Option<i128>> {
    let number = i128::from_input(input)?;
    match number < 0 {
        true => {
            let message = "Input should be greater than or equal to 0";
            Err(input.field_error("greater_than_equal", message))
        }
        false => Ok(Some(number)),
    }
}

impl Dump for EffectivePolicy {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("include_exec_output", &self.include_exec_output)?;
        out.put("max_stdout_chars", &self.max_stdout_chars)?;
        out.put("max_stderr_chars", &self.max_stderr_chars)?;
        out.put("include_write_len", &self.include_write_len)?;
        Ok(out.into())
    }
}
