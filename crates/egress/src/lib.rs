#![doc = include_str!("../README.md")]

mod body;
mod client_hello;
mod client_stream;
mod confine;
mod control;
mod denial;
mod dial;
mod dns;
mod flow;
mod head;
mod http;
mod names;
mod notes;
mod package_cache;
mod pending_approvals;
mod relay;
mod resolver;
mod secrets;
mod serve;
mod splice;
mod state;
mod sys;
mod tls;

pub use client_hello::{ClientHello, peek};
pub use control::{Channel, sealed, unsealed};
pub use head::HeadCheck;
pub use serve::run;

/// What this session answers to a DNS message of a program, for tests of hostile messages.
#[must_use]
pub fn dns_reply(policy: &bastide_model::policy::Policy, message: &[u8]) -> Option<Vec<u8>> {
    let names = std::sync::Mutex::new(names::Names::new("test", bastide_proto::egress::NAME_RANGE));
    dns::answer(policy, &names, message).map(|answer| answer.bytes)
}
