//! Which sinks get the events of what the tool does.

use std::io::Write;

use bastide::events::{
    AuditKey, AuditOptions, EventOptions, HttpSink, JsonlOutbox, LineSink, OtelSink, SinkOptions,
};
use bastide::{Error, ErrorKind, Result};

use crate::config;
use crate::ui::{escaped, escaped_json};

/// Who hears of it, as the environment says: the audit log unless it is turned off, and whoever else
/// is named.
pub(crate) fn options() -> Result<EventOptions> {
    let settings = config::events();
    let mut options = EventOptions::new().report(|text| {
        // Where nobody listens there is nobody to tell.
        drop(writeln!(std::io::stderr(), "bastide: {}", escaped(text)));
    });
    match settings.audit.as_deref() {
        None | Some("on" | "1") => {
            let mut audit = AuditOptions::default().actor("bastide");
            if let Some(key) = &settings.audit_key {
                audit = audit.key(AuditKey::read(key)?);
            }
            options = options.audit(audit);
        }
        Some("off" | "0") => {}
        Some(other) => {
            let message = format!("BASTIDE_AUDIT is {other:?}");
            return Err(
                Error::new(ErrorKind::InvalidInput, message).with_hint("it is `on` or `off`")
            );
        }
    }
    match settings.sink.as_deref() {
        None => {}
        Some("-") => {
            let print = |lines: &str| {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(escaped_json(lines).as_bytes()).and_then(|()| stdout.flush())
            };
            options = options.sink(LineSink::new(print));
        }
        Some(address) if address.contains("://") => {
            options = options.sink(HttpSink::new(address)?);
        }
        Some(path) => options = options.sink(JsonlOutbox::new(path)),
    }
    if let Some(endpoint) = &settings.otel {
        let sink = OtelSink::new(endpoint)?;
        options = options.sink(sink.options(SinkOptions::best_effort().extended()));
    }
    if let Some(context) = &settings.traceparent {
        // Somebody else's trace that cannot be read is no reason not to work.
        if let Ok(context) = context.parse() {
            options = options.trace(context);
        }
    }
    Ok(options)
}
