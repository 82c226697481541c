//! Which sinks receive what, how, and what that changes.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bastide::events::{
    CallbackSink, ChainedSink, Delivery, EventOptions, JsonlOutbox, OnError, PayloadPolicy, Sink,
    SinkOptions, TraceContext, WorkspaceJsonl, WorkspaceLogOptions,
};
use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorClass, Session};
use serde_json::Value;

use super::{Listener, failure};
use crate::suite::{Context, Outcome, Trial, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    tells_of_the_ten_operations_and_no_others,
    tells_of_the_life_of_a_session,
    tells_everything_to_whoever_asks,
    says_of_a_command_what_policies_allow,
    never_says_a_secret,
    does_nothing_a_sink_that_must_hear_of_it_cannot,
    goes_on_whatever_becomes_of_other_sinks,
    keeps_the_order_of_a_chain,
    gives_every_sink_the_rest_at_the_end,
    keeps_a_log_in_the_workspace,
    goes_on_with_the_trace_of_the_caller,
    says_that_an_operation_was_given_up,
];

/// A session that tells of itself from when it is there.
pub(super) async fn session(context: &Context, events: EventOptions) -> bastide::Result<Session> {
    let options = CreateOptions::default().detached();
    let made = context.client().create(&Manifest::default(), options).await?;
    context.client().with_events(events).attach(made.id()).await
}

async fn tells_of_the_life_of_a_session(context: Context) -> Outcome {
    let recorded_events = Listener::new(SinkOptions::sync());
    let client =
        context.client().with_events(EventOptions::new().shared_sink(recorded_events.clone()));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    session.exec(sh("true")).await?;
    session.close().await?;
    session.delete().await?;
    // What starting, stopping and shutting down consist of is not told.
    let want = ["start", "exec", "stop", "shutdown"];
    let want: Vec<_> =
        want.iter().flat_map(|op| [format!("{op} start"), format!("{op} finish")]).collect();
    assert_eq!(recorded_events.operations(), want);
    assert!(
        recorded_events
            .recorded_events()
            .iter()
            .all(|event| event.finish.as_ref().is_none_or(|end| end.ok))
    );
    Ok(())
}

fn shown() -> PayloadPolicy {
    PayloadPolicy { include_exec_output: Some(true), ..PayloadPolicy::default() }
}

async fn tells_of_the_ten_operations_and_no_others(context: Context) -> Outcome {
    let recorded_events = Listener::new(SinkOptions::sync());
    let session =
        session(&context, EventOptions::new().shared_sink(recorded_events.clone())).await?;
    session.files().mkdir_all("folder").await?;
    session.files().write("folder/file", "content").await?;
    session.files().ls("folder").await?;
    session.files().read("folder/file").await?;
    failure(session.files().read("nothing").await)?;
    session.exec(sh("exit 3")).await?;
    assert!(session.compat().running().await);
    failure(session.compat().resolve_exposed_port(80).await)?;
    session.delete().await?;
    let want = ["write", "read", "read", "exec", "running", "resolve_exposed_port"];
    let want: Vec<_> =
        want.iter().flat_map(|op| [format!("{op} start"), format!("{op} finish")]).collect();
    assert_eq!(recorded_events.operations(), want);
    let events = recorded_events.recorded_events();
    let seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=12).collect::<Vec<i128>>());
    for pair in events.chunks(2) {
        assert_eq!(pair[0].span_id, pair[1].span_id);
        assert!(pair[0].span_id.starts_with("sandbox_op_") && pair[0].trace_id.is_none());
    }
    let finish = |index: usize| events[index].finish.clone().unwrap_or_default();
    assert_eq!(events[0].data["bytes"], 7);
    assert_eq!(finish(5).error_code, Some("workspace_read_not_found"));
    assert_eq!(finish(5).error_type.as_deref(), Some("WorkspaceReadNotFoundError"));
    assert_eq!((finish(7).ok, finish(7).error_type), (false, None));
    assert_eq!(events[7].data["process.exit.code"], 3);
    assert!(finish(7).stdout.is_none() && finish(7).duration_ms > 0.0);
    assert_eq!(finish(11).error_code, Some("exposed_port_unavailable"));
    Ok(())
}

async fn tells_everything_to_whoever_asks(context: Context) -> Outcome {
    let recorded_events = Listener::new(SinkOptions::sync().extended());
    let session =
        session(&context, EventOptions::new().shared_sink(recorded_events.clone())).await?;
    session.files().mkdir_all("folder").await?;
    session.exec(sh("echo hello")).await?;
    let id = session.launch(sh("exit 4")).await?;
    let mut process = session.attach(id, 0).await?;
    while !matches!(process.next().await?, bastide::OutputEvent::Exit(_)) {}
    session.files().rm("folder").await?;
    session.processes().await?;
    session.delete().await?;
    let ops: Vec<_> = recorded_events.recorded_events().iter().map(|event| event.op).collect();
    let want = ["mkdir", "exec", "spawn", "attach", "rm", "processes", "delete"];
    assert_eq!(ops, want.iter().flat_map(|op| [*op, *op]).collect::<Vec<_>>());
    let events = recorded_events.recorded_events();
    assert_eq!((&events[3].data["stdout_size"], events[3].seq), (&Value::from(6), 4));
    // Whoever started it did not wait for its end.
    assert_eq!(events[7].data["exit_code"], 4);
    assert_eq!(events[7].data["late"], true);
    Ok(())
}

async fn says_of_a_command_what_policies_allow(context: Context) -> Outcome {
    let quiet = Listener::new(SinkOptions::sync());
    let few = PayloadPolicy { max_stdout_chars: Some(3), ..shown() };
    let few = Listener::new(SinkOptions::sync().policy(few));
    let all = Listener::new(SinkOptions::sync().policy(shown()));
    let no = PayloadPolicy { include_exec_output: Some(false), ..PayloadPolicy::default() };
    let options = EventOptions::new().policy_for("exec", no);
    let options = [&quiet, &few, &all]
        .into_iter()
        .fold(options, |options, sink| options.shared_sink(sink.clone()));
    let session = session(&context, options).await?;
    session.exec(sh("printf 'äbcdé'; echo oops >&2")).await?;
    session.exec(sh("yes | head -c 1000000")).await?;
    session.delete().await?;
    let said = |sink: &Listener, index: usize| {
        let finish = sink.recorded_events()[index].finish.clone().unwrap_or_default();
        (finish.stdout, finish.stderr)
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(said(&quiet, 1), (None, None));
    assert_eq!(said(&few, 1), (text("äbc…"), text("oops\n")));
    assert_eq!(said(&all, 1), (text("äbcdé"), text("oops\n")));
    assert_eq!(said(&all, 3), (text(&("y\n".repeat(4000) + "…")), text("")));
    Ok(())
}

async fn never_says_a_secret(context: Context) -> Outcome {
    let recorded_events = Listener::new(SinkOptions::sync().policy(shown()).extended());
    let options =
        EventOptions::new().shared_sink(recorded_events.clone()).secret("TOKEN", "s3cr3t-value");
    let session = session(&context, options).await?;
    session.exec(sh("echo s3cr3t-value; echo s3cr3t-value >&2")).await?;
    session.files().write("s3cr3t-value/file", "x").await?;
    failure(session.files().read("s3cr3t-value/other").await)?;
    failure(session.files().ls("s3cr3t-value/none").await)?;
    session.delete().await?;
    let events = recorded_events.recorded_events();
    let lines: String = events.iter().map(|event| event.json_line()).collect();
    assert!(!lines.contains("s3cr3t") && lines.contains("<secret:TOKEN>"), "{lines}");
    let bytes = events.iter().filter_map(|event| event.finish.as_ref()?.stdout_bytes.as_ref());
    assert!(bytes.clone().count() > 0 && bytes.into_iter().all(|b| b == b"<secret:TOKEN>\n"));
    // Which ones were used is said by name.
    assert_eq!(events[0].data["secrets"], serde_json::json!(["TOKEN"]));
    Ok(())
}

async fn does_nothing_a_sink_that_must_hear_of_it_cannot(context: Context) -> Outcome {
    let starts = Listener::failing(SinkOptions::sync(), |event| {
        event.data.get("path").is_some_and(|path| path == "first") && event.finish.is_none()
    });
    let finishes = Listener::failing(SinkOptions::sync().delivery(Delivery::Async), |event| {
        event.data.get("path").is_some_and(|path| path == "second") && event.finish.is_some()
    });
    let options = EventOptions::new().shared_sink(starts).shared_sink(finishes);
    let session = session(&context, options).await?;
    let error = failure(session.files().write("first", "x").await)?;
    assert_eq!(error.class(), Some(ErrorClass::RuntimeError));
    let message = "sandbox event sink failed: Listener while handling event ";
    assert!(error.message().starts_with(message), "{error}");
    // One served behind the operation is waited for as well, and its own error is passed on.
    let error = failure(session.files().write("second", "x").await)?;
    assert_eq!((error.class(), error.message()), (Some(ErrorClass::ValueError), "not that one"));
    let left: Vec<_> = session.files().ls(".").await?.into_iter().map(|info| info.path).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].ends_with("/second"));
    Ok(session.delete().await?)
}

async fn goes_on_whatever_becomes_of_other_sinks(context: Context) -> Outcome {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&reported);
    let failing = |options: SinkOptions| Listener::failing(options, |_| true);
    let sync = SinkOptions::sync();
    let stuck = CallbackSink::waiting(|_, _| Box::pin(std::future::pending()));
    let stuck = stuck.options(SinkOptions::best_effort().name("stuck").queue_bytes(4096));
    let last = Listener::new(SinkOptions::sync());
    let options = EventOptions::new()
        .report(move |text| report.lock().unwrap_or_else(|e| e.into_inner()).push(text.to_owned()))
        .shared_sink(failing(sync.clone().on_error(OnError::Log).name("logs")))
        .shared_sink(failing(sync.clone().on_error(OnError::Ignore).name("ignores")))
        .shared_sink(failing(SinkOptions::best_effort().name("behind")))
        .sink(stuck)
        .shared_sink(last.clone());
    let session = session(&context, options).await?;
    for _ in 0..20 {
        assert_eq!(session.exec(sh("echo here")).await?.stdout, b"here\n");
    }
    assert_eq!(last.recorded_events().len(), 40);
    let stats = session.event_stats();
    let of = |name: &str| stats.iter().find(|stats| stats.sink == name).cloned();
    assert_eq!(of("logs").map(|stats| stats.failed), Some(40));
    assert_eq!(of("ignores").map(|stats| stats.failed), Some(40));
    // What found no room was counted, and the first of it said.
    let dropped = of("stuck").map_or(0, |stats| stats.dropped);
    assert!((20..40).contains(&dropped), "{stats:?}");
    let said = reported.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let logged = said.iter().filter(|text| text.contains("Listener: not that one")).count();
    assert!(logged >= 40, "{said:?}");
    assert_eq!(said.iter().filter(|text| text.contains("are dropped")).count(), 1, "{said:?}");
    // A sink that never answers is not waited for at the end of the session, either.
    context.client().delete(session.id()).await?;
    Ok(())
}

async fn keeps_the_order_of_a_chain(context: Context) -> Outcome {
    let order = Arc::new(Mutex::new(Vec::new()));
    let member = |name: &'static str, options: SinkOptions| {
        let order = Arc::clone(&order);
        let sink = CallbackSink::waiting(move |event, session| {
            let order = Arc::clone(&order);
            Box::pin(async move {
                tokio::task::yield_now().await;
                let mut order = order.lock().unwrap_or_else(|e| e.into_inner());
                order.push((name, event.seq, session.id().clone()));
                Ok(())
            })
        });
        Arc::new(sink.options(options)) as Arc<dyn Sink>
    };
    let fails = Listener::failing(SinkOptions::best_effort(), |_| true);
    let chain = ChainedSink::new([
        member("first", SinkOptions::best_effort()),
        fails as Arc<dyn Sink>,
        member("second", SinkOptions::sync().delivery(Delivery::Async)),
        member("third", SinkOptions::sync()),
    ]);
    let session = session(&context, EventOptions::new().sink(chain)).await?;
    session.files().write("a", "x").await?;
    let recorded_events = order.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let id = session.id().clone();
    let want: Vec<_> = [1, 2]
        .into_iter()
        .flat_map(|seq| ["first", "second", "third"].map(|name| (name, seq, id.clone())))
        .collect();
    assert_eq!(recorded_events, want);
    Ok(session.delete().await?)
}

async fn gives_every_sink_the_rest_at_the_end(context: Context) -> Outcome {
    let host = tempfile::tempdir()?;
    let outbox = host.path().join("deep/er/outbox.jsonl");
    let recorded_events = Arc::new(Mutex::new(0));
    let slow = {
        let recorded_events = Arc::clone(&recorded_events);
        CallbackSink::waiting(move |_, _| {
            let recorded_events = Arc::clone(&recorded_events);
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                *recorded_events.lock().unwrap_or_else(|e| e.into_inner()) += 1;
                Ok(())
            })
        })
    };
    let slow = slow.options(SinkOptions::best_effort());
    let options = EventOptions::new().sink(JsonlOutbox::new(&outbox)).sink(slow);
    let session = session(&context, options).await?;
    for number in 0..10 {
        session.files().write(&format!("file{number}"), "x").await?;
    }
    session.delete().await?;
    assert_eq!(*recorded_events.lock().unwrap_or_else(|e| e.into_inner()), 20);
    let text = fs::read_to_string(outbox)?;
    let events: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let seqs: Vec<_> = events.iter().filter_map(|event| event["seq"].as_i64()).collect();
    assert_eq!(seqs, (1..=20).collect::<Vec<i64>>());
    assert!(
        text.starts_with("{\"data\":{\"bytes\":1,\"path\":\"file0\",\"user\":null},"),
        "{text}"
    );
    Ok(())
}

async fn keeps_a_log_in_the_workspace(context: Context) -> Outcome {
    let log = |path: &str, every: i64, ephemeral: bool| {
        WorkspaceJsonl::new(WorkspaceLogOptions {
            workspace_relpath: path.to_owned(),
            flush_every: every,
            ephemeral,
            ..WorkspaceLogOptions::default()
        })
        .options(SinkOptions::sync())
    };
    let template = WorkspaceJsonl::new(WorkspaceLogOptions::default()).options(SinkOptions::sync());
    let options = EventOptions::new()
        .sink(log("logs/each.jsonl", 1, true))
        .sink(log("logs/third.jsonl", 3, false))
        .sink(template);
    let session = session(&context, options).await?;
    session.files().write("a", "x").await?;
    session.files().write("b", "x").await?;
    // What is done to keep the logs makes no events.
    let line = "wc -l < logs/each.jsonl; wc -l < logs/third.jsonl; ls logs";
    let said = session.exec(sh(line)).await?;
    let said = String::from_utf8(said.stdout)?;
    let uuid = uuid::Uuid::parse_str(session.id().as_str())?;
    assert_eq!(said, format!("5\n3\neach.jsonl\nevents-{uuid}.jsonl\nthird.jsonl\n"));
    let skipped: Vec<_> =
        session.compat().event_skip_paths().iter().map(|path| path.as_str().to_owned()).collect();
    assert_eq!(skipped, ["logs/each.jsonl"]);
    Ok(session.delete().await?)
}

async fn goes_on_with_the_trace_of_the_caller(context: Context) -> Outcome {
    let recorded_events = Listener::new(SinkOptions::sync());
    let general: TraceContext =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
    let own: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse()?;
    let unsampled = TraceContext { sampled: false, ..own };
    let options = EventOptions::new().shared_sink(recorded_events.clone()).trace(general);
    let session = session(&context, options).await?;
    session.files().write("a", "x").await?;
    own.scope(session.files().write("b", "x")).await?;
    unsampled.scope(session.files().write("c", "x")).await?;
    session.delete().await?;
    let events = recorded_events.recorded_events();
    let names = |index: usize| {
        let event = &events[index];
        (event.trace_id.clone(), event.parent_span_id.clone())
    };
    let text = |text: &str| Some(text.to_owned());
    let general = "trace_4bf92f3577b34da6a3ce929d0e0e4736";
    assert_eq!(names(1), (text(general), text("span_00f067aa0ba902b7")));
    let own = "trace_0af7651916cd43dd8448eb211c80319c";
    assert_eq!(names(2), (text(own), text("span_b7ad6b7169203331")));
    assert!(events[2].span_id.starts_with("span_") && events[2].span_id == events[3].span_id);
    assert_eq!(names(4), (None, None));
    assert!(events[4].span_id.starts_with("sandbox_op_"));
    Ok(())
}

async fn says_that_an_operation_was_given_up(context: Context) -> Outcome {
    let recorded_events =
        Listener::new(SinkOptions::sync().delivery(Delivery::Async).on_error(OnError::Log));
    let session =
        session(&context, EventOptions::new().shared_sink(recorded_events.clone())).await?;
    {
        let mut process = session.spawn(sh("echo up; sleep 60")).await?;
        process.next().await?;
    }
    session.flush_events().await;
    let events = recorded_events.recorded_events();
    assert_eq!(recorded_events.operations(), ["exec start", "exec finish"]);
    let finish = events[1].finish.clone().unwrap_or_default();
    assert_eq!((finish.ok, finish.error_type.as_deref()), (false, Some("cancelled")));
    let error = session.exec(sh("sleep 60").timeout(Duration::from_millis(50))).await;
    assert_eq!(error.map(|output| output.exit.code).map_err(|error| error.kind()), Ok(124));
    session.flush_events().await;
    let finish = recorded_events.recorded_events()[3].finish.clone().unwrap_or_default();
    assert_eq!(finish.error_type.as_deref(), Some("ExecTimeoutError"));
    assert_eq!(finish.error_code, Some("exec_timeout"));
    Ok(session.delete().await?)
}
