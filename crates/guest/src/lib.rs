#![doc = include_str!("../README.md")]

mod accounts;
mod init;
mod jail;
mod launcher;
mod packet;
mod porter;
mod server;
mod supervisor;
mod sys;
pub mod warden;
