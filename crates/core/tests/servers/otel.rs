//! What a collector of OpenTelemetry makes of what arrives.

use std::collections::BTreeMap;

use bastide::SessionId;
use bastide::compat::raise;
use bastide::events::{EventOptions, OperationResult, OtelSink, TraceContext};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use super::receiver::Receiver;
use super::{exec, run, source, write};

fn spans(receiver: &Receiver) -> Vec<Span> {
    let requests = receiver.received();
    let requests = requests.iter().filter(|request| request.path == "/v1/traces");
    let messages = requests.map(|request| {
        assert_eq!(request.headers["content-type"], "application/x-protobuf");
        ExportTraceServiceRequest::decode(&request.plain()[..]).unwrap()
    });
    let mut spans = Vec::new();
    for resource in messages.flat_map(|message| message.resource_spans) {
        let named = attributes(&resource.resource.unwrap().attributes);
        assert_eq!(named["service.name"], "bastide");
        for scoped in resource.scope_spans {
            assert_eq!(scoped.scope.unwrap().name, "bastide");
            spans.extend(scoped.spans);
        }
    }
    spans
}

fn metrics(receiver: &Receiver) -> BTreeMap<String, Metric> {
    let requests = receiver.received();
    let last = requests.iter().rfind(|request| request.path == "/v1/metrics").unwrap();
    let message = ExportMetricsServiceRequest::decode(&last.plain()[..]).unwrap();
    let scoped = message.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
    let all = scoped.flat_map(|scoped| scoped.metrics);
    all.map(|metric| (metric.name.clone(), metric)).collect()
}

fn attributes(all: &[KeyValue]) -> BTreeMap<String, String> {
    let shown = |pair: &KeyValue| match pair.value.as_ref().and_then(|any| any.value.clone()) {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(flag)) => flag.to_string(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.iter().map(|pair| (pair.key.clone(), shown(pair))).collect()
}

/// The points of a sum: attributes, and the count.
fn points(metric: &Metric) -> BTreeMap<String, i64> {
    let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?} is no sum") };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
    let points = sum.data_points.iter().map(|point| {
        assert!(point.start_time_unix_nano <= point.time_unix_nano);
        let Some(number_data_point::Value::AsInt(count)) = point.value else { panic!("{point:?}") };
        let named = attributes(&point.attributes);
        (named.into_values().collect::<Vec<_>>().join(" "), count)
    });
    points.collect()
}

#[test]
fn understands_the_spans_and_goes_on_with_the_callers_trace() {
    let receiver = Receiver::start(|_| 200);
    let sink = OtelSink::new(&format!("http://{}/", receiver.address)).unwrap().gzip();
    let id = SessionId::random();
    let source = source(&EventOptions::new().sink(sink).secret("TOKEN", "s3cr3t"), &id);
    let caller: TraceContext =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    let ended = |exit_code| OperationResult::Exec { exit_code, stdout: vec![], stderr: vec![] };
    run(async {
        caller.scope(exec(&source, Ok(ended(0)))).await;
        exec(&source, Ok(ended(3))).await;
        let error = raise::exec_transport(["x s3cr3t"]).with_retryable(true);
        exec(&source, Err(error)).await;
        source.flush().await;
    });
    let spans = spans(&receiver);
    assert_eq!(spans.len(), 3);
    let session = uuid::Uuid::parse_str(id.as_str()).unwrap();
    for span in &spans {
        assert_eq!((span.name.as_str(), span.kind), ("sandbox.exec", 1));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
        let named = attributes(&span.attributes);
        assert_eq!(named["sandbox.operation"], "exec");
        assert_eq!(named["sandbox.session.id"], session.to_string());
        assert!(!format!("{span:?}").contains("s3cr3t"));
    }
    assert_eq!(spans[0].trace_id, caller.trace_id);
    assert_eq!(spans[0].parent_span_id, caller.span_id);
    assert!(spans[0].status.is_none());
    assert_eq!(attributes(&spans[0].attributes)["process.exit.code"], "0");
    // What nobody traces is one trace for each session.
    assert_eq!(spans[1].trace_id, session.as_bytes());
    assert!(spans[1].parent_span_id.is_empty() && spans[1].span_id != spans[2].span_id);
    let status = spans[1].status.clone().unwrap();
    let message = "Sandbox operation returned an unsuccessful result.";
    assert_eq!((status.code, status.message.as_str()), (2, message));
    assert_eq!(attributes(&spans[1].attributes)["error.type"], "ExecNonZeroError");
    let status = spans[2].status.clone().unwrap();
    assert_eq!((status.code, status.message.as_str()), (2, "ExecTransportError"));
    let named = attributes(&spans[2].attributes);
    assert_eq!(named["error_code"], "exec_transport_error");
    assert_eq!(
        (named["error_type"].as_str(), named["error_retryable"].as_str()),
        ("ExecTransportError", "true")
    );
}

#[test]
fn understands_the_metrics() {
    let receiver = Receiver::start(|_| 200);
    let sink = OtelSink::new(&format!("http://{}", receiver.address)).unwrap();
    let source = source(&EventOptions::new().sink(sink), &SessionId::random());
    run(async {
        for number in 0..10 {
            write(&source, "file").await;
            let (stdout, stderr) = (Vec::new(), Vec::new());
            exec(&source, Ok(OperationResult::Exec { exit_code: number % 2, stdout, stderr }))
                .await;
        }
        source.flush().await;
    });
    let metrics = metrics(&receiver);
    let count = |name: &str| points(&metrics[name]);
    let pairs = |pairs: &[(&str, i64)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(count("bastide.operations"), pairs(&[("exec", 10), ("write", 10)]));
    assert_eq!(count("bastide.execs"), pairs(&[("", 10)]));
    assert_eq!(count("bastide.failures"), pairs(&[("ExecNonZeroError exec", 5)]));
    assert_eq!(count("bastide.bytes"), pairs(&[("in", 70)]));
    let Some(Data::Histogram(durations)) = &metrics["bastide.operation.duration"].data else {
        panic!("no histogram");
    };
    assert_eq!(durations.data_points.len(), 2);
    for point in &durations.data_points {
        assert_eq!((point.count, point.bucket_counts.iter().sum::<u64>()), (10, 10));
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert!(point.sum.is_some_and(|sum| sum > 0.0));
    }
}
