//! Our sessions, performing scenarios as the reference's driver does.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bastide::events::{Event, EventOptions, PayloadPolicy, Sink, SinkOptions};
use bastide::{Backend, Client, CreateOptions, NetworkAccess, Session, SnapshotChoice};
use bastide_model::snapshot::SnapshotSpec;
use bastide_model::{ClientOptions, Error, ErrorClass, Manifest, PosixPath, Result, lax};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::LiveBackend;
use super::calls;

/// No call of a scenario takes longer.
const STEP: Duration = Duration::from_secs(60);

/// A client of ours.
pub(super) struct BastideClient {
    backend: Arc<dyn Backend>,
    side: LiveBackend,
}

/// What a scenario has come to so far.
pub(super) struct ScenarioState<'a> {
    pub(super) client: Client,
    pub(super) line: &'a Value,
    pub(super) session: Option<Session>,
    /// Archives that later calls use.
    pub(super) archives: HashMap<String, Vec<u8>>,
    /// States that a session is resumed from later.
    pub(super) states: HashMap<String, Value>,
    /// The last interactive process.
    pub(super) process: i64,
    pub(super) recorder: Arc<EventRecorder>,
    side: &'a LiveBackend,
}

impl BastideClient {
    pub(super) fn new(backend: Arc<dyn Backend>, side: LiveBackend) -> Self {
        Self { backend, side }
    }

    /// What we make of a scenario.
    pub(super) async fn perform(&self, line: &Value) -> Value {
        let recorder = Arc::new(EventRecorder::new());
        let events = EventOptions::new().shared_sink(Arc::clone(&recorder) as Arc<dyn Sink>);
        let client = Client::new(Arc::clone(&self.backend)).with_events(events);
        let mut stage = ScenarioState {
            client,
            line,
            session: None,
            archives: HashMap::new(),
            states: HashMap::new(),
            process: -1,
            recorder,
            side: &self.side,
        };
        let mut steps = vec![json!({"op": "open"})];
        steps.extend(line["steps"].as_array().into_iter().flatten().cloned());
        let mut done = Vec::new();
        for step in &steps {
            stage.recorder.take();
            let mut call = match timeout(STEP, calls::perform(&mut stage, step)).await {
                Ok(outcome) => answered(outcome),
                Err(_) => json!({"error": {"type": "TimeoutError", "message": "no end"}}),
            };
            call["events"] = stage.recorder.take();
            let is_closed = done.is_empty() && call.get("error").is_some();
            done.push(call);
            if is_closed || stage.session.is_none() {
                break;
            }
        }
        let mut answer = json!({"calls": done});
        if let Some(session) = stage.session.take() {
            answer["session"] = session.id().to_string().into();
            answer["root"] = session.root().as_str().into();
            let id = session.id().clone();
            drop(session);
            // A scenario may have deleted it.
            drop(stage.client.delete(&id).await);
        }
        answer
    }
}

impl ScenarioState<'_> {
    pub(super) fn manifest(&self) -> Result<Manifest> {
        lax::read(&self.line["manifest"])
    }

    pub(super) fn tmp(&self) -> &Path {
        Path::new(self.line["tmp"].as_str().unwrap_or_default())
    }

    pub(super) fn options(&self) -> Result<CreateOptions> {
        let ports = self.line.get("exposed_ports").cloned().unwrap_or_else(|| json!([]));
        let written = json!({"type": "unix_local", "exposed_ports": ports});
        let mut options = CreateOptions::written(&lax::read::<ClientOptions>(&written)?)?;
        options.unix_local = *self.side == LiveBackend::Local;
        // A session of the reference has what the host has.
        let term = std::env::var_os("TERM").and_then(|term| term.into_string().ok());
        let term = term.filter(|_| *self.side == LiveBackend::Local);
        options.env.extend(term.map(|term| ("TERM".to_owned(), term)));
        options.base_dir = Some(self.tmp().to_owned());
        if *self.side == LiveBackend::Local {
            // The reference's sessions on this machine have its network.
            options.network = NetworkAccess::Host;
        } else if !options.exposed_ports.is_empty() {
            options.network = NetworkAccess::Bridge;
        }
        if self.line["snapshot"] == true {
            let base_path = PosixPath::new(&self.tmp().join("snapshots").to_string_lossy());
            options.snapshot = Some(SnapshotChoice::Spec(SnapshotSpec::Local { base_path }));
        }
        Ok(options)
    }
}

/// What came of a call, as the reference's driver tells it.
pub(super) fn answered(outcome: Result<Value>) -> Value {
    match outcome {
        Ok(result) => json!({"result": result}),
        Err(error) => json!({"error": error_object(&error)}),
    }
}

/// An error as the reference's driver tells it.
fn error_object(error: &Error) -> Value {
    let mut error_object = json!({
        "type": error.class().map(ErrorClass::name).unwrap_or_default(),
        "message": error.message(),
        "context": error.context(),
    });
    if let Some(code) = error.error_code() {
        error_object["code"] = code.into();
        error_object["retryable"] = json!(error.is_retryable());
    }
    error_object
}

/// Keeps what it hears.
#[derive(Debug)]
pub(super) struct EventRecorder {
    options: SinkOptions,
    events: Mutex<Vec<Arc<Event>>>,
}

impl EventRecorder {
    fn new() -> Self {
        let mut options = SinkOptions::sync();
        options.policy =
            Some(PayloadPolicy { include_exec_output: Some(true), ..PayloadPolicy::default() });
        Self { options, events: Mutex::default() }
    }

    pub(super) fn take(&self) -> Value {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.drain(..).map(|event| event.to_json()).collect()
    }
}

#[async_trait]
impl Sink for EventRecorder {
    fn kind(&self) -> &'static str {
        "Heard"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let mut recorder = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.extend(events.iter().cloned());
        Ok(())
    }
}
