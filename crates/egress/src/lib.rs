#![doc = include_str!("../README.md")]

mod ask;
mod body;
mod cache;
mod carry;
mod confine;
mod control;
mod copy;
mod dial;
mod dns;
mod flow;
mod head;
mod hello;
mod http;
mod names;
mod notes;
mod problem;
mod resolve;
mod secrets;
mod serve;
mod state;
mod stream;
mod sys;
mod tls;

pub use control::{Channel, sealed, unsealed};
pub use head::HeadCheck;
pub use hello::{ClientHello, peek};
pub use serve::run;

/// What this session answers to a DNS message of a program, for tests of hostile messages.
#[must_use]
pub fn dns_reply(policy: &bastide_model::policy::Policy, message: &[u8]) -> Option<Vec<u8>> {
    let names = std::sync::Mutex::new(names::Names::new("test", bastide_proto::egress::NAME_RANGE));
    dns::answer(policy, &names, message).map(|answer| answer.bytes)
}
