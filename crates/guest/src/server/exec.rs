//! Calls about processes: run one, listen to one, signal one, list them.

use std::sync::Arc;

use bastide_proto::frame::Tag;
use bastide_proto::{AcceptWhen, Accepted, Attach, Control, End, Exec, ProcessNotice, Signal};

use super::Guest;
use super::call::{Disconnected, Inbox, Outbox, Refusal, fault};
use super::log::Cursor;
use super::process::Process;
use super::usage;

/// Answers a request to run a command.
pub(super) async fn run(
    guest: &Arc<Guest>,
    exec: Exec,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let answer = exec.answer;
    let process = Process::start(guest, exec).await?;
    let accepted = Accepted { process: Some(process.id), from: 0 };
    if answer == AcceptWhen::Detached {
        outbox.accept(accepted).await?;
        return Ok(outbox.end(&End::Detached).await?);
    }
    process.set_owned(true);
    let ownership = Ownership(&process);
    let cursor = process.log.cursor(0).map_err(|error| fault("cannot read the log", &error))?;
    process.log.wait_for(Some(&cursor));
    match answer {
        AcceptWhen::Together => outbox.queue_acceptance(accepted).await?,
        _ => outbox.accept(accepted).await?,
    }
    forward_streams(&process, cursor, inbox, outbox).await?;
    process.set_owned(false);
    drop(ownership);
    process.set_delivered();
    guest.processes.prune();
    Ok(())
}

/// Answers a request to listen to a process.
pub(super) async fn attach(
    guest: &Guest,
    attach: Attach,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let process = guest.processes.find(attach.process)?;
    let failed = |error: std::io::Error| fault("cannot read the log", &error);
    let mut cursor = process.log.cursor(attach.from).map_err(failed)?;
    outbox.accept(Accepted { process: Some(process.id), from: cursor.offset() }).await?;
    if attach.only_so_far {
        let until = process.log.length();
        while cursor.offset() < until && send_next(&process, &mut cursor, outbox).await? {}
        let end = process.end().unwrap_or(End::Detached);
        return Ok(outbox.end(&end).await?);
    }
    Ok(forward_streams(&process, cursor, inbox, outbox).await?)
}

/// Answers a request to signal a process.
pub(super) async fn signal(
    guest: &Guest,
    signal: Signal,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let process = guest.processes.find(signal.process)?;
    process.signal(signal.signal)?;
    if signal.signal == libc::SIGKILL {
        process.wait_reaped().await;
    }
    outbox.accept(Accepted { process: Some(process.id), from: 0 }).await?;
    Ok(outbox.end(&End::Done).await?)
}

/// Answers a request about who has the terminal of a process.
pub(super) async fn terminal(
    guest: &Guest,
    process: u64,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let process = guest.processes.find(process)?;
    let state = process.terminal_state()?;
    outbox.accept(Accepted { process: Some(process.id), from: 0 }).await?;
    outbox.item(&state).await?;
    Ok(outbox.end(&End::Done).await?)
}

/// Answers a request to end a process that nobody wants any more.
pub(super) async fn cancel(
    guest: &Guest,
    process: u64,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    guest.processes.find(process)?.cancel();
    outbox.accept(Accepted { process: Some(process), from: 0 }).await?;
    Ok(outbox.end(&End::Done).await?)
}

/// Answers a request to let a process live on when the call that started it is dropped.
pub(super) async fn detach(
    guest: &Guest,
    process: u64,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let found = guest.processes.find(process)?;
    found.set_owned(false);
    found.log.wait_for(None);
    outbox.accept(Accepted { process: Some(process), from: 0 }).await?;
    Ok(outbox.end(&End::Done).await?)
}

/// Answers a request to list the processes.
pub(super) async fn list(guest: &Guest, outbox: &mut Outbox) -> Result<(), Refusal> {
    outbox.accept(Accepted::default()).await?;
    for record in guest.processes.list() {
        outbox.item(&record).await?;
    }
    Ok(outbox.end(&End::Done).await?)
}

/// The call that started a process ends it by going away, unless it lets go first.
struct Ownership<'a>(&'a Process);

impl Drop for Ownership<'_> {
    fn drop(&mut self) {
        self.0.log.wait_for(None);
        if self.0.is_owned() {
            self.0.cancel();
        }
    }
}

/// Sends what the process says and does what the host says, until the process has ended.
async fn forward_streams(
    process: &Process,
    cursor: Cursor,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Disconnected> {
    // Both at once: a command that waits for its output to be read does not read its input.
    tokio::select! {
        biased;
        sent = send_output(process, cursor, outbox) => sent,
        gone = listen(process, inbox) => Err(gone),
    }
}

/// Sends what the process says, and at last how it ended.
async fn send_output(
    process: &Process,
    mut cursor: Cursor,
    outbox: &mut Outbox,
) -> Result<(), Disconnected> {
    let ended = process.ended();
    tokio::pin!(ended);
    let mut more = true;
    let end = loop {
        tokio::select! {
            biased;
            () = process.log.ready(&cursor), if more => {
                more = send_next(process, &mut cursor, outbox).await?;
            }
            end = &mut ended => break end,
        }
    };
    while send_next(process, &mut cursor, outbox).await? {}
    let lost = process.log.lost();
    if lost > 0 {
        outbox.item(&ProcessNotice::Lost(lost)).await?;
    }
    if outbox.takes_usage() {
        // Together with the end.
        outbox.queue_item(&ProcessNotice::Usage(usage::of_process(process))).await?;
    }
    outbox.end(&end).await
}

/// Does what the host says, until the host is gone.
async fn listen(process: &Process, inbox: &mut Inbox) -> Disconnected {
    loop {
        let frame = match inbox.next().await {
            Ok(frame) => frame,
            Err(gone) => return gone,
        };
        match frame.tag {
            Tag::Input => process.write(&frame.body).await,
            Tag::InputEnd => process.close_input().await,
            Tag::Control => match bastide_proto::decode(&frame.body) {
                Ok(Control::Resize(size)) => process.resize(size),
                _ => return Disconnected,
            },
            _ => return Disconnected,
        }
    }
}

/// Sends the next piece of the log; false if there is none.
async fn send_next(
    process: &Process,
    cursor: &mut Cursor,
    outbox: &mut Outbox,
) -> Result<bool, Disconnected> {
    match process.log.next(cursor) {
        Ok(Some((tag, data))) => outbox.data(tag, data).await.map(|()| true),
        Ok(None) => Ok(false),
        // The log cannot be read: better no answer than a wrong one.
        Err(_) => Err(Disconnected),
    }
}
