//! What the network of a session decided, as events: the proxy notes it, and whoever does something with the session next
//! tells it.

use std::path::Path;

use bastide_model::events::{EventTime, Operation, OperationResult};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{Recorder, now, object};
use crate::Result;
use crate::backend::SessionId;
use crate::events::EventOptions;
use crate::events::audit::{self, Auditor};
use crate::events::redact::Redactor;
use crate::events::sink_delivery::SinkDelivery;
use crate::events::trace::Names;

/// The word for it in events.
const OP: &str = "egress";

impl Recorder {
    /// Tells what a session's network decided while nobody was there to hear it, for a session that nobody goes on with.
    pub(crate) async fn record_network_of(
        options: &EventOptions,
        home: &Path,
        id: &SessionId,
        audit: Option<Auditor>,
    ) -> Result<()> {
        if options.sinks.is_empty() || !audit::has_egress_notes(home, id) {
            return Ok(());
        }
        let redactor = Redactor::new(options.secrets.iter().cloned());
        let mut recorder = Self::of(options, id, None, audit, redactor)?;
        recorder.network = Some((home.to_owned(), id.clone()));
        let delivered = recorder.record_network().await;
        recorder.flush().await;
        delivered
    }

    /// Tells what the session's network decided since the last time.
    pub(super) async fn record_network(&self) -> Result<()> {
        let Some((home, id)) = &self.network else { return Ok(()) };
        if !audit::has_egress_notes(home, id) {
            return Ok(());
        }
        let has_listeners = self.deliveries.iter().any(SinkDelivery::is_extended);
        let noted = match &self.audit {
            Some(audit) => audit.take_notes().await?,
            // They stay for whoever asks what was decided.
            None if !has_listeners => return Ok(()),
            // What cannot be read now is read the next time.
            None => audit::take_egress_notes(home, id).unwrap_or_default(),
        };
        if !has_listeners {
            return Ok(());
        }
        for note in noted {
            self.record_decision(object(note)).await?;
        }
        Ok(())
    }

    /// The two events of one note.
    async fn record_decision(&self, note: Map<String, Value>) -> Result<()> {
        let number = |name: &str| note.get(name).and_then(Value::as_u64);
        let at = |millis: u64| {
            let micros = millis.saturating_mul(1000);
            EventTime::from_unix_micros(i64::try_from(micros).unwrap_or(i64::MAX))
        };
        let took = number("duration_ms").unwrap_or(0);
        let (began, ended) = match number("ts_ms") {
            Some(ended) => (at(ended.saturating_sub(took)), at(ended)),
            None => (now(), now()),
        };
        let data = note.into_iter().filter(|(name, _)| name != "ts_ms" && name != "duration_ms");
        let operation = Operation::Extension { op: OP, data: data.collect() };
        let span = Names::new(self.trace).span;
        let start = operation.start_event(self.session, 0, &span, (Uuid::new_v4(), began));
        let done = Ok(OperationResult::Done);
        let stamp = (Uuid::new_v4(), ended);
        let took = std::time::Duration::from_millis(took).as_secs_f64() * 1000.0;
        let finish = operation.finish_event(self.session, 0, &span, stamp, took, done);
        for event in [start, finish] {
            let recorded = self.recorded_event(event, &operation, Map::new());
            // Not to the log, which has the note itself.
            for delivery in &self.deliveries {
                delivery.deliver(&recorded, &self.policies).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::events::{JsonlOutbox, SinkOptions, egress_notes};

    #[tokio::test]
    async fn tells_once_what_was_noted_with_when_it_was() {
        let home = tempfile::tempdir().unwrap();
        let id = SessionId::random();
        let path = egress_notes(home.path(), &id);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let notes = [
            json!({"ts_ms": 5000, "decision": "deny", "why": "no_rule", "host": "a.test", "port": 443}),
            json!({"ts_ms": 9000, "decision": "end", "why": "rule", "host": "b.test", "port": 443,
                   "bytes_in": 7, "bytes_out": 3, "duration_ms": 2000}),
        ];
        let lines: Vec<String> = notes.iter().map(|note| format!("{note}\n")).collect();
        std::fs::write(&path, lines.concat()).unwrap();
        let outbox = home.path().join("events");
        let sink = JsonlOutbox::new(&outbox).options(SinkOptions::best_effort().extended());
        let options = EventOptions::new().sink(sink);
        for _ in 0..2 {
            Recorder::record_network_of(&options, home.path(), &id, None).await.unwrap();
        }
        let text = std::fs::read_to_string(&outbox).unwrap();
        let events: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let shown: Vec<_> = events
            .iter()
            .map(|event| (&event["op"], &event["phase"], &event["data"]["host"], &event["ts"]))
            .collect();
        let (op, start, finish) = (json!(OP), json!("start"), json!("finish"));
        let at = |seconds: u32| json!(format!("1970-01-01T00:00:0{seconds}Z"));
        let (a, b, [five, seven, nine]) = (json!("a.test"), json!("b.test"), [5, 7, 9].map(at));
        let want = vec![
            (&op, &start, &a, &five),
            (&op, &finish, &a, &five),
            (&op, &start, &b, &seven),
            (&op, &finish, &b, &nine),
        ];
        assert_eq!(shown, want, "{text}");
        assert_eq!(events[3]["data"]["bytes_in"], 7);
        assert_eq!(events[3]["duration_ms"], 2000.0);
    }

    #[tokio::test]
    async fn leaves_what_was_noted_where_nobody_would_hear_it() {
        let home = tempfile::tempdir().unwrap();
        let id = SessionId::random();
        let path = egress_notes(home.path(), &id);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let note = json!({"ts_ms": 5000, "decision": "deny", "why": "no_rule", "host": "a.test"});
        std::fs::write(&path, format!("{note}\n")).unwrap();
        let sink = JsonlOutbox::new(home.path().join("events")).options(SinkOptions::sync());
        let options = EventOptions::new().sink(sink);
        Recorder::record_network_of(&options, home.path(), &id, None).await.unwrap();
        let left = std::fs::read_to_string(&path).unwrap();
        assert!(left.contains("a.test"), "{left}");
    }
}
