//! Messages of a version keep their form for good: sessions live longer than the program that started them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bastide_proto::tree::ScanMessage;
use bastide_proto::warden::{LeaseUpdate, WardenRequest, WardenResponse};
use bastide_proto::{
    AcceptWhen, Accepted, Attach, End, Exec, ProcessNotice, ProcessRecord, Request, Signal, Stdin,
    TerminalState, TreeToken, Usage, encode,
};
use serde::Serialize;
use serde_bytes::ByteBuf;

#[track_caller]
fn is(message: &impl Serialize, bytes: &[u8]) {
    assert_eq!(encode(message).unwrap(), bytes);
}

#[test]
fn requests_of_version_1_have_the_form_they_had() {
    let exec = Exec {
        argv: vec![ByteBuf::from("ls")],
        env: vec![(ByteBuf::from("A"), ByteBuf::from("b"))],
        cwd: "/w".parse().unwrap(),
        user: None,
        stdin: Stdin::Null,
        timeout: None,
        terminal: None,
        answer: AcceptWhen::Together,
    };
    is(&Request::Exec(exec), b"\0\x01\x02ls\x01\x01A\x01b\x02/w\0\0\0\0\x02");
    let attach = Attach { process: 3, from: 300, only_so_far: true };
    is(&Request::Attach(attach), &[1, 3, 0xac, 2, 1]);
    is(&Request::Signal(Signal { process: 3, signal: 15 }), &[2, 3, 30]);
    is(&Request::Cancel { process: 5 }, &[3, 5]);
    is(&Request::Detach { process: 5 }, &[4, 5]);
    is(&Request::Processes, &[5]);
    is(&Request::Ping, &[10]);
    is(&Request::Freeze { end: true }, &[12, 1]);
}

#[test]
fn answers_of_version_1_have_the_form_they_had() {
    is(&Accepted { process: Some(7), from: 2 }, &[1, 7, 2]);
    is(&End::Done, &[0]);
    is(&End::Exited { code: 7 }, &[2, 14]);
    is(&End::Signalled { signal: 9 }, &[3, 18]);
    is(&End::Timeout, &[5]);
    is(&ProcessNotice::Lost(5), &[0, 5]);
    let record = ProcessRecord {
        process: 1,
        pid: 2,
        argv: vec!["x".to_owned()],
        started_ms: 3,
        end: None,
        output: 4,
        terminal: false,
        children: Vec::new(),
    };
    is(&record, b"\x01\x04\x01\x01x\x03\0\x04\0\0");
}

#[test]
fn requests_to_wardens_have_the_form_they_had() {
    is(&WardenRequest::Publish { port: 8080 }, &[0, 0x90, 0x3f]);
    is(&WardenRequest::Ports, &[1]);
    is(&WardenRequest::Mounts, &[2]);
    is(&WardenRequest::End { remove: true }, &[3, 1]);
    is(&WardenRequest::Lease(LeaseUpdate::default()), &[4, 0, 0, 0, 0, 0]);
    is(&WardenRequest::Egress, &[5]);
    is(&WardenResponse::Ended, &[2]);
    is(&WardenResponse::Refused { errno: 1 }, &[3, 2]);
}

#[test]
fn what_version_6_added_has_the_form_it_has() {
    is(&Request::TreeToken, &[18]);
    is(&TreeToken { token: None }, &[0]);
    let token = [1; 16];
    is(&TreeToken { token: Some(token) }, &[&[1], token.as_slice()].concat());
    is(&ScanMessage::Token(token), &[&[8], token.as_slice()].concat());
}

#[test]
fn what_version_5_added_has_the_form_it_has() {
    is(&Request::Connect { port: 8080 }, &[17, 0x90, 0x3f]);
}

#[test]
fn what_version_4_added_has_the_form_it_has() {
    is(&Request::Terminal { process: 5 }, &[15, 5]);
    is(&TerminalState { is_own: true, is_hidden: false }, &[1, 0]);
}

#[test]
fn what_version_2_added_has_the_form_it_has() {
    is(&Request::Usage, &[13]);
    is(&ProcessNotice::Usage(Usage { cpu_us: 1, ..Usage::default() }), &[1, 1, 0, 0, 0, 0]);
}
