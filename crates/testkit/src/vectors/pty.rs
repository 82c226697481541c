//! Area `pty`: the rules of interactive processes.

use bastide_model::Result;
use bastide_model::pty::{self, PtyOutput, PtyUse};
use serde_json::{Value, json};

use super::case::{decode_base64, encode_base64, malformed};
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("clamp_pty_yield_time_ms", |case| {
        Ok(pty::clamp_pty_yield_time_ms(case.integer("yield_time_ms")?).into())
    }),
    ("resolve_pty_write_yield_time_ms", |case| {
        let input = if case.flag("input_empty", false)? { "" } else { "x" };
        Ok(pty::resolve_pty_write_yield_time_ms(case.integer("yield_time_ms")?, input).into())
    }),
    ("process_id_to_prune_from_meta", process_id_to_prune),
    ("allocate_pty_process_id", allocate),
    ("pty_constants", constants),
    ("incomplete_utf8_suffix_length", |case| {
        Ok(pty::incomplete_utf8_suffix_length(&case.bytes("data_b64")?).into())
    }),
    ("collect_pty_output", |case| collect(&mut PtyOutput::default(), case.input)),
    ("collect_pty_output_sequence", |case| {
        let mut output = PtyOutput::default();
        case.list("steps")?.iter().map(|step| collect(&mut output, step)).collect()
    }),
];

fn process_id_to_prune(case: &Case<'_>) -> Result<Value> {
    let read = |item: &Value| {
        Some(PtyUse {
            process_id: item[0].as_i64()?,
            last_used: item[1].as_f64()?,
            exited: item[2].as_bool()?,
        })
    };
    let uses: Option<Vec<_>> = case.list("meta")?.iter().map(read).collect();
    Ok(json!(pty::process_id_to_prune(&uses.ok_or_else(|| malformed("meta", "processes"))?)))
}

fn allocate(case: &Case<'_>) -> Result<Value> {
    let ranges = case.list("used_ranges")?;
    let in_use = |id: i64| {
        ranges.iter().any(|range| {
            let (start, stop) = (range[0].as_i64(), range[1].as_i64());
            start.is_some_and(|start| start <= id) && stop.is_some_and(|stop| id < stop)
        })
    };
    Ok(json!(pty::allocate_pty_process_id(0x5eed, in_use)))
}

fn constants(_: &Case<'_>) -> Result<Value> {
    Ok(json!({
        "PTY_EMPTY_YIELD_TIME_MS_MIN": pty::PTY_EMPTY_YIELD_TIME_MS_MIN,
        "PTY_PROCESSES_MAX": pty::PTY_PROCESSES_MAX,
        "PTY_PROCESSES_PROTECTED_RECENT": pty::PTY_PROCESSES_PROTECTED_RECENT,
        "PTY_PROCESSES_WARNING": pty::PTY_PROCESSES_WARNING,
        "PTY_PROCESS_ID_MAX_EXCLUSIVE": pty::PTY_PROCESS_ID_MAX_EXCLUSIVE,
        "PTY_PROCESS_ID_MIN": pty::PTY_PROCESS_ID_MIN,
        "PTY_YIELD_TIME_MS_MAX": pty::PTY_YIELD_TIME_MS_MAX,
        "PTY_YIELD_TIME_MS_MIN": pty::PTY_YIELD_TIME_MS_MIN,
    }))
}

/// One call that finds `chunks_b64` already queued.
fn collect(output: &mut PtyOutput, step: &Value) -> Result<Value> {
    for chunk in step["chunks_b64"].as_array().into_iter().flatten() {
        output.push(&decode_base64(chunk.as_str().unwrap_or_default())?);
    }
    if step["done"].as_bool().unwrap_or_default() {
        output.close();
    }
    let collected = output.collect(step["max_output_tokens"].as_i64());
    let left = output.pending();
    let left = if left.is_empty() { json!([]) } else { json!([encode_base64(left)]) };
    Ok(json!({
        "output_b64": encode_base64(&collected.output),
        "original_token_count": collected.original_token_count,
        "output_closed": collected.output_closed,
        "remaining_chunks_b64": left,
    }))
}
