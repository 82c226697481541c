//! Area `token_truncation`: cutting text to a budget.

use bastide_model::Result;
use bastide_model::truncation::{self, Truncated, TruncationPolicy};
use serde_json::{Value, json};

use super::case::malformed;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("formatted_truncate_text_with_token_count", formatted_with_count),
    ("truncate_text_by_tokens", formatted_with_count),
    ("formatted_truncate_text", |case| {
        Ok(truncation::formatted_truncate_text(&content(case)?, policy(case)?).into())
    }),
    ("truncate_text", |case| Ok(truncation::truncate_text(&content(case)?, policy(case)?).into())),
    ("truncate_with_token_budget", |case| {
        Ok(show(truncation::truncate_with_token_budget(&content(case)?, policy(case)?)))
    }),
    ("truncate_with_byte_estimate", |case| {
        Ok(truncation::truncate_with_byte_estimate(&content(case)?, policy(case)?).into())
    }),
    ("split_string", split_string),
    ("split_budget", |case| Ok(json!(truncation::split_budget(case.integer("budget")?)))),
    ("format_truncation_marker", |case| {
        Ok(truncation::format_truncation_marker(policy(case)?, case.integer("removed_count")?)
            .into())
    }),
    ("removed_units_for_source", |case| {
        let (bytes, chars) = (case.integer("removed_bytes")?, case.integer("removed_chars")?);
        Ok(truncation::removed_units_for_source(policy(case)?, bytes, chars).into())
    }),
    ("assemble_truncated_output", |case| {
        let (prefix, suffix) = (case.text("prefix")?, case.text("suffix")?);
        Ok(truncation::assemble_truncated_output(prefix, suffix, case.text("marker")?).into())
    }),
    ("approx_token_count", |case| Ok(truncation::approx_token_count(&content(case)?).into())),
    ("approx_bytes_for_tokens", |case| {
        Ok(truncation::approx_bytes_for_tokens(case.integer("tokens")?).into())
    }),
    ("approx_tokens_from_byte_count", |case| {
        Ok(truncation::approx_tokens_from_byte_count(case.integer("byte_count")?).into())
    }),
    ("truncation_policy", truncation_policy),
];

/// Text, or text repeated.
fn content(case: &Case<'_>) -> Result<String> {
    let value = case.get("content");
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let text = value["text"].as_str();
    let count = value["count"].as_u64().and_then(|count| usize::try_from(count).ok());
    match (text, count) {
        (Some(text), Some(count)) => Ok(text.repeat(count)),
        _ => Err(malformed("content", "text")),
    }
}

fn policy(case: &Case<'_>) -> Result<TruncationPolicy> {
    let policy = case.object("policy")?;
    let limit = policy["limit"].as_i64().ok_or_else(|| malformed("policy", "a limit"))?;
    match policy["mode"].as_str() {
        Some("bytes") => Ok(TruncationPolicy::bytes(limit)),
        Some("tokens") => Ok(TruncationPolicy::tokens(limit)),
        _ => Err(malformed("policy", "a mode")),
    }
}

fn show(cut: Truncated) -> Value {
    json!({"text": cut.text, "original_token_count": cut.original_token_count})
}

fn formatted_with_count(case: &Case<'_>) -> Result<Value> {
    let max = case.get("max_output_tokens").as_i64();
    Ok(show(truncation::formatted_truncate_text_with_token_count(&content(case)?, max)))
}

fn split_string(case: &Case<'_>) -> Result<Value> {
    let content = content(case)?;
    let (head, tail) = (case.integer("beginning_bytes")?, case.integer("end_bytes")?);
    let split = truncation::split_string(&content, head, tail);
    Ok(json!({
        "removed_chars": split.removed_chars,
        "before": split.before,
        "after": split.after,
    }))
}

fn truncation_policy(case: &Case<'_>) -> Result<Value> {
    let policy = policy(case)?;
    Ok(json!({
        "mode": policy.mode(),
        "limit": policy.limit(),
        "token_budget": policy.token_budget(),
        "byte_budget": policy.byte_budget(),
    }))
}
