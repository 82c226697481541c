//! Events of whole sessions: through a session of ours where a case has only what a session can do, and
//! through what its sinks hang on where a case says how the work itself goes.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bastide::events::{
    Event, EventOptions, EventSource, Operation, OperationResult, PayloadPolicy, Sink, SinkOptions,
};
use bastide::{Client, Command, CreateOptions, Session};
use bastide_model::error::raise;
use bastide_model::snapshot::Snapshot;
use bastide_model::{Entry, Error, ErrorKind, Manifest, PosixPath, Result, lax};
use serde_json::{Map, Value, json};

use super::case::malformed;
use super::errors;
use super::session::run;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[("session_events", session_events)];

/// The session of all cases.
const SESSION: &str = "12345678123456781234567812345678";

fn session_events(case: &Case<'_>) -> Result<Value> {
    let received = Arc::new(Recording::new(optional_policy(case.get("sink_policy"))?));
    let mut options = EventOptions::new().shared_sink(Arc::clone(&received) as Arc<dyn Sink>);
    options = options.policy(optional_policy(case.get("payload_policy"))?.unwrap_or_default());
    for (op, policy) in case.get("payload_policy_by_op").as_object().into_iter().flatten() {
        options = options.policy_for(op, optional_policy(policy)?.unwrap_or_default());
    }
    if is_plain(case)? {
        live(case, options)?;
    } else {
        scripted(case, &options)?;
    }
    Ok(received.events())
}

fn optional_policy(value: &Value) -> Result<Option<PayloadPolicy>> {
    match value {
        Value::Null => Ok(None),
        value => lax::read(value).map(Some),
    }
}

/// Whether a case asks for nothing but what a session does by itself.
fn is_plain(case: &Case<'_>) -> Result<bool> {
    const OPS: &[&str] =
        &["exec", "read", "read_bounded", "write", "running", "resolve_exposed_port"];
    const KEYS: &[&str] = &["op", "command", "path", "max_bytes", "content", "port"];
    let is_known = |step: &Value| {
        let keys = step.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        OPS.contains(&step["op"].as_str().unwrap_or_default())
            && keys.clone().all(|key| KEYS.contains(&key))
    };
    let is_set = |key: &&str| !case.get(key).is_null();
    let has_script =
        ["manifest", "exec_rules", "exposed_ports", "snapshot", "running"].iter().any(is_set);
    Ok(!has_script && case.list("steps")?.iter().all(is_known))
}

/// Performs the steps in a session.
fn live(case: &Case<'_>, options: EventOptions) -> Result<()> {
    let Some(backend) = case.backend else {
        return Err(Error::new(ErrorKind::Internal, "the case needs a session"));
    };
    let mut manifest = Manifest::default();
    for (path, content) in case.get("files").as_object().into_iter().flatten() {
        let relative = path.strip_prefix("/workspace/").unwrap_or(path);
        let content = content.as_str().ok_or_else(|| malformed("files", "text"))?;
        manifest.entries.insert(relative.to_owned(), Entry::file(content));
    }
    let steps = case.list("steps")?;
    run(async {
        // Its start is not one of the steps.
        let without_sink = Client::new(Arc::clone(backend));
        let made = without_sink.create(&manifest, CreateOptions::default()).await?;
        let session = without_sink.clone().with_events(options).attach(made.id()).await?;
        for step in steps {
            // What becomes of it is in the events.
            drop(perform(&session, step).await);
        }
        without_sink.delete(session.id()).await.map(drop)
    })?
}

async fn perform(session: &Session, step: &Value) -> Result<()> {
    let text = |key: &str| step[key].as_str().ok_or_else(|| malformed(key, "text"));
    match text("op")? {
        "exec" => {
            let line = step["command"][0].as_str().ok_or_else(|| malformed("command", "text"))?;
            session.exec(Command::shell(line)).await.map(drop)
        }
        "read" => session.files().read(text("path")?).await.map(drop),
        "read_bounded" => {
            let most = step["max_bytes"].as_u64().unwrap_or(0);
            session.files().read_bounded(text("path")?, most).await.map(drop)
        }
        "write" => session.files().write(text("path")?, text("content")?.to_owned()).await,
        "running" => session.is_running().await.map(drop),
        "resolve_exposed_port" => {
            let port = step["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            let port = port.ok_or_else(|| malformed("port", "a port"))?;
            session.compat().resolve_exposed_port(port).await.map(drop)
        }
        op => Err(Error::new(ErrorKind::Internal, format!("no operation `{op}`"))),
    }
}

/// Tells of the steps, whose work the case describes.
fn scripted(case: &Case<'_>, options: &EventOptions) -> Result<()> {
    let source = |id: &str| EventSource::new(options, &id.parse()?);
    run(async {
        let source = source(SESSION)?;
        let mut is_over = *case.get("running") == false;
        for step in case.list("steps")? {
            let operation = operation(case, step)?;
            let work = async { outcome(case, step, is_over) };
            // What becomes of it is in the events.
            drop(source.observe(operation, work, OperationResult::clone).await);
            is_over |= step["op"] == "shutdown";
        }
        Ok(())
    })?
}

fn operation(case: &Case<'_>, step: &Value) -> Result<Operation> {
    let text = |key: &str| step[key].as_str().unwrap_or_default().to_owned();
    let user = step["user"].as_str().or_else(|| step["user"]["name"].as_str());
    let user = user.map(str::to_owned);
    let root = case.get("manifest")["root"].as_str().unwrap_or("/workspace").to_owned();
    let left = step["content"].as_str().map(|content| {
        let offset = step["offset"].as_u64().unwrap_or(0);
        (content.len() as u64).saturating_sub(offset)
    });
    Ok(match step["op"].as_str().unwrap_or_default() {
        "start" => Operation::Start,
        "stop" => Operation::Stop,
        "shutdown" => Operation::Shutdown,
        "running" => Operation::Running,
        "exec" => Operation::Exec {
            command: command(step),
            timeout_s: step["timeout"].as_number().cloned(),
            shell: if step["shell"].is_null() { json!(true) } else { step["shell"].clone() },
            user,
        },
        "read" => Operation::Read { path: text("path"), user, max_bytes: None },
        "read_bounded" => {
            Operation::Read { path: text("path"), user, max_bytes: step["max_bytes"].as_u64() }
        }
        "write" => Operation::Write { path: text("path"), user, bytes: left },
        "resolve_exposed_port" => {
            Operation::ResolveExposedPort { port: step["port"].as_i64().unwrap_or_default() }
        }
        "persist_workspace" => {
            let snapshot = case.get("snapshot");
            let snapshot = (!snapshot.is_null()).then(|| lax::read::<Snapshot>(snapshot));
            let tar_path = snapshot.transpose()?.and_then(|snapshot| snapshot.tar_path());
            Operation::PersistWorkspace { workspace_root: root, tar_path }
        }
        "hydrate_workspace" => Operation::HydrateWorkspace { untar_dir: root, bytes: left },
        op => return Err(Error::new(ErrorKind::Internal, format!("no operation `{op}`"))),
    })
}

fn command(step: &Value) -> Vec<String> {
    let words = step["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    words.map(str::to_owned).collect()
}

/// What the case says comes of a step.
fn outcome(case: &Case<'_>, step: &Value, is_over: bool) -> Result<OperationResult> {
    if let Some(class) = step["fail"]["class"].as_str() {
        let none = Map::new();
        let arguments = step["fail"]["kwargs"].as_object().unwrap_or(&none);
        return Err(errors::build(class, arguments)?);
    }
    Ok(match step["op"].as_str().unwrap_or_default() {
        "start" if !case.get("manifest").is_null() => {
            let manifest: Manifest = lax::read(case.get("manifest"))?;
            manifest.validated_entries()?;
            OperationResult::Done
        }
        "exec" => {
            let line = command(step).join(" ");
            let mut rules = case.list("exec_rules")?.iter();
            let is_it = |rule: &&Value| rule["match"].as_str().is_some_and(|m| line.contains(m));
            let rule = rules.find(is_it).cloned().unwrap_or_default();
            let bytes = |key: &str| rule[key].as_str().unwrap_or_default().as_bytes().to_vec();
            OperationResult::Exec {
                exit_code: rule["exit_code"].as_i64().unwrap_or(0),
                stdout: bytes("stdout"),
                stderr: bytes("stderr"),
            }
        }
        "read" | "read_bounded" => {
            let path = step["path"].as_str().unwrap_or_default();
            let root = case.get("manifest")["root"].as_str().unwrap_or("/workspace");
            let place = PosixPath::new(root).join(&PosixPath::new(path));
            match case.get("files")[place.as_str()].is_null() {
                true => return Err(raise::workspace_read_not_found(PosixPath::new(path))),
                false => OperationResult::Done,
            }
        }
        "running" => {
            let alive = step["alive"].as_bool().or(step["running"].as_bool()).unwrap_or(!is_over);
            OperationResult::Running { alive }
        }
        "resolve_exposed_port" => {
            let (port, exposed) = (step["port"].as_i64(), case.list("exposed_ports")?);
            let number = port.and_then(|port| u16::try_from(port).ok()).unwrap_or_default();
            let mut exposed = exposed.iter().filter_map(Value::as_i64);
            if !exposed.any(|exposed| Some(exposed) == port) {
                let none = std::iter::empty::<u16>();
                return Err(raise::exposed_port_unavailable(number, none, "not_configured", None));
            }
            OperationResult::Port {
                host: step["endpoint"]["host"].as_str().unwrap_or("127.0.0.1").to_owned(),
                port: step["endpoint"]["port"].as_i64().unwrap_or_default(),
            }
        }
        // What the recorded sessions saved was always this long.
        "persist_workspace" => OperationResult::Persisted { bytes: Some(13) },
        _ => OperationResult::Done,
    })
}

/// Keeps what it hears.
#[derive(Debug)]
struct Recording {
    options: SinkOptions,
    received: Mutex<Vec<Arc<Event>>>,
}

impl Recording {
    fn new(policy: Option<PayloadPolicy>) -> Self {
        let mut options = SinkOptions::sync();
        options.policy = policy;
        Self { options, received: Mutex::default() }
    }

    /// The events, with everything that is never the same twice by one name.
    fn events(&self) -> Value {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let mut spans: Vec<String> = Vec::new();
        let events = received.iter().map(|event| {
            let mut event = event.to_json();
            let span = event["span_id"].as_str().unwrap_or_default().to_owned();
            let is_untraced = span.starts_with("sandbox_op_");
            let known = spans.iter().position(|known| *known == span);
            let number = known.unwrap_or_else(|| {
                spans.push(span);
                spans.len() - 1
            });
            let name = if is_untraced { "span" } else { "strange" };
            event["span_id"] = format!("<{name}-{}>", number + 1).into();
            event["event_id"] = "<event>".into();
            event["ts"] = "<ts>".into();
            event["session_id"] = "12345678-1234-5678-1234-567812345678".into();
            if let Some(duration) = event.get_mut("duration_ms") {
                *duration = json!(0.0);
            }
            event
        });
        events.collect()
    }
}

#[async_trait]
impl Sink for Recording {
    fn kind(&self) -> &'static str {
        "Recording"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.extend(events.iter().cloned());
        Ok(())
    }
}
