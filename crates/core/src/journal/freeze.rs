//! Processes of a session that are kept from running.

use std::time::{Duration, Instant};

use bastide_proto::{End, Frozen, Request};

use crate::Result;
use crate::link::fault::{agent_lost, refused};
use crate::link::{Incoming, Link, Stream, broken, decode};

/// How long a guest may take to stop or end everything.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);

/// Everything stands still, and no command starts, until this is dropped.
pub(crate) struct Freeze {
    stream: Stream,
    since: Instant,
    /// How many processes were stopped, or ended.
    pub(super) processes: u32,
}

impl Freeze {
    /// Stops everything, or ends it.
    pub(crate) async fn begin(link: &dyn Link, end: bool) -> Result<Self> {
        let since = Instant::now();
        let mut stream = link.open(Request::Freeze { end }).await?;
        let late = |_| agent_lost("the guest did not stop the session's processes in time");
        let said = tokio::time::timeout(FREEZE_TIMEOUT, stream.from_guest.next()).await;
        match said.map_err(late)?? {
            Incoming::Item(item) => {
                let Frozen { processes } = decode(&item)?;
                Ok(Self { stream, since, processes })
            }
            Incoming::End(End::Failed(fault)) => Err(refused(fault)
                .with_hint("a process waits for a disk or a device; try again, or end it")),
            _ => Err(broken("not the standstill of a session")),
        }
    }

    /// Lets everything go on; says for how long it stood still.
    pub(crate) async fn end(mut self) -> Result<Duration> {
        self.stream.to_guest.input_end().await?;
        self.stream.finish().await?;
        Ok(self.since.elapsed())
    }
}
