//! The lease of a session: when it ends by itself, whoever is there or not.
//!
//! Time is that of a clock which nobody sets and which runs while the machine sleeps. Nothing wakes the warden
//! before the first moment at which the lease can end: then the guest is asked how long nothing has happened, and
//! the next such moment follows from the answer. What the guest says can only make an idle session last longer, as any
//! command could that never ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bastide_proto::warden::{ExpiryAction, LeaseState, LeaseUpdate};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::ports::Ports;
use crate::port_channel;

/// How long the guest may take to answer, and how long until it is asked again if it does not: it may be paused.
const ANSWER: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(5);

/// How long until an end is tried again that failed.
const RETRY: Duration = Duration::from_secs(5);

/// The time by the clock of leases.
pub(super) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// The lease of one session; one without limits, at first.
#[derive(Debug)]
pub(super) struct Lease {
    /// Whether the guest can be asked how long nothing has happened.
    asks: bool,
    until: Option<Duration>,
    idle: Option<Idle>,
    then: ExpiryAction,
    /// Set to the next moment something is to be done; made with the first limit.
    timer: Option<OwnedFd>,
}

#[derive(Debug)]
struct Idle {
    limit: Duration,
    /// When the session can have been idle for that long, at the earliest.
    due: Duration,
    /// Where the guest's answer comes, and until when it is waited for.
    query: Option<(UnixStream, Duration)>,
}

impl Lease {
    pub(super) fn new(asks: bool) -> Self {
        Self { asks, until: None, idle: None, then: ExpiryAction::default(), timer: None }
    }

    /// Changes the lease; what it is then.
    pub(super) fn update(&mut self, update: &LeaseUpdate) -> Result<LeaseState, Errno> {
        if update.ttl_ms == Some(0) || update.idle_ms == Some(0) {
            return Err(Errno::INVAL);
        }
        if update.idle_ms.is_some() && !self.asks {
            return Err(Errno::NOSYS);
        }
        let now = now();
        if update.forget {
            (self.until, self.idle, self.then) = (None, None, ExpiryAction::default());
        }
        if let Some(ttl) = update.ttl_ms {
            let until = now.saturating_add(Duration::from_millis(ttl));
            // One without an end lasts longer than any other.
            let is_enough = self.until.is_none_or(|before| before >= until);
            if !(update.at_least && is_enough) {
                self.until = Some(until);
            }
        }
        if let Some(limit) = update.idle_ms {
            let limit = Duration::from_millis(limit);
            self.idle = Some(Idle { limit, due: now.saturating_add(limit), query: None });
        }
        self.then = update.then.unwrap_or(self.then);
        self.set_timer()?;
        Ok(self.state(now))
    }

    fn state(&self, now: Duration) -> LeaseState {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        LeaseState {
            remaining_ms: self.until.map(|until| millis(until.saturating_sub(now))),
            idle_ms: self.idle.as_ref().map(|idle| millis(idle.limit)),
            then: self.then,
        }
    }

    /// What to wait for: the timer, and the guest's answer.
    pub(super) fn waits(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let query = self.idle.as_ref().and_then(|idle| idle.query.as_ref());
        let answer = query.map(|(near, _)| near.as_fd());
        self.timer.as_ref().map(AsFd::as_fd).into_iter().chain(answer)
    }

    /// Does what there is to do now; what is to become of the session, if its lease ran out.
    pub(super) fn check(&mut self, ports: &Ports) -> Option<ExpiryAction> {
        let now = now();
        if let Some(timer) = &self.timer {
            // Only so that it does not say again what it has said.
            let _ = rustix::io::read(timer, &mut [0; 8]);
        }
        let is_over = self.until.is_some_and(|until| until <= now)
            || self.idle.as_mut().is_some_and(|idle| idle.is_over(now, ports));
        if is_over {
            // Whoever cannot end the session now tries again.
            self.until = Some(now.saturating_add(RETRY));
            self.idle = None;
        }
        if self.set_timer().is_err() {
            // Nothing would wake us for the end that was promised.
            return Some(self.then);
        }
        is_over.then_some(self.then)
    }

    fn set_timer(&mut self) -> Result<(), Errno> {
        let idle = self.idle.as_ref().map(Idle::next);
        let next = self.until.into_iter().chain(idle).min();
        if self.timer.is_none() {
            if next.is_none() {
                return Ok(());
            }
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            self.timer = Some(timerfd_create(TimerfdClockId::Boottime, flags)?);
        }
        let Some(timer) = &self.timer else { return Ok(()) };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = next.and_then(|next| Timespec::try_from(next).ok()).unwrap_or(never);
        let set = Itimerspec { it_interval: never, it_value: at };
        timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &set)?;
        Ok(())
    }
}

impl Idle {
    /// When there is something to do next.
    fn next(&self) -> Duration {
        self.query.as_ref().map_or(self.due, |(_, until)| *until)
    }

    /// Whether nothing has happened for long enough. Asks the guest if it may be so.
    fn is_over(&mut self, now: Duration, ports: &Ports) -> bool {
        if let Some((near, until)) = &self.query {
            match answer(near) {
                Some(Ok(idle)) => {
                    self.query = None;
                    if idle >= self.limit {
                        // A connection may have come while the guest was asked.
                        return self.is_quiet(now, ports);
                    }
                    self.due = now.saturating_add(self.limit.saturating_sub(idle));
                }
                Some(Err(_)) => self.schedule_check(now),
                None if *until <= now => self.schedule_check(now),
                None => {}
            }
            return false;
        }
        if self.due <= now && self.is_quiet(now, ports) {
            match ask(ports) {
                Ok(near) => self.query = Some((near, now.saturating_add(ANSWER))),
                Err(_) => self.schedule_check(now),
            }
        }
        false
    }

    /// Whether no port had traffic for as long; if one had, when that can be so at the earliest.
    fn is_quiet(&mut self, now: Duration, ports: &Ports) -> bool {
        let quiet = ports.last_traffic().saturating_add(self.limit);
        if quiet > now {
            self.due = quiet;
        }
        quiet <= now
    }

    fn schedule_check(&mut self, now: Duration) {
        self.query = None;
        self.due = now.saturating_add(AGAIN);
    }
}

fn ask(ports: &Ports) -> io::Result<UnixStream> {
    let (near, far) = UnixStream::pair()?;
    port_channel::ask_idle(ports.channel(), far.as_fd())?;
    Ok(near)
}

/// What the guest said, once it has: how long nothing has happened.
fn answer(near: &UnixStream) -> Option<io::Result<Duration>> {
    let mut bytes = [0; 8];
    match recv(near, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((8, _)) => Some(Ok(Duration::from_millis(u64::from_le_bytes(bytes)))),
        Ok(_) => Some(Err(io::ErrorKind::InvalidData.into())),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Err(errno) => Some(Err(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn ports() -> (Ports, OwnedFd) {
        let (near, far) = port_channel::pair().unwrap();
        (Ports::new(near, true), far)
    }

    #[test]
    fn lasts_as_long_as_it_was_last_given() {
        let mut lease = Lease::new(true);
        let (ports, _guest) = ports();
        assert_eq!(lease.check(&ports), None, "without limits it never ends");
        let hour = LeaseUpdate { ttl_ms: Some(3_600_000), ..LeaseUpdate::default() };
        let left = lease.update(&hour).unwrap().remaining_ms.unwrap();
        assert!((3_590_000..=3_600_000).contains(&left));
        let short = LeaseUpdate { ttl_ms: Some(1), at_least: true, ..LeaseUpdate::default() };
        assert!(lease.update(&short).unwrap().remaining_ms.unwrap() > 3_500_000);
        assert_eq!(lease.check(&ports), None);
        let short = LeaseUpdate { then: Some(ExpiryAction::Delete), at_least: false, ..short };
        lease.update(&short).unwrap();
        lease.until = Some(Duration::ZERO);
        assert_eq!(lease.check(&ports), Some(ExpiryAction::Delete));
        let none = LeaseUpdate { forget: true, ..LeaseUpdate::default() };
        assert_eq!(lease.update(&none).unwrap().remaining_ms, None);
        assert_eq!(lease.check(&ports), None);
        let nothing = LeaseUpdate { idle_ms: Some(0), ..LeaseUpdate::default() };
        assert_eq!(lease.update(&nothing), Err(Errno::INVAL));
    }

    #[test]
    fn believes_the_guest_about_what_goes_on_and_waits_for_no_answer() {
        for (bytes, is_over) in [(0, false), (999, false), (1000, true), (u64::MAX, true)] {
            let (ports, guest) = ports();
            let mut lease = Lease::new(true);
            let update = LeaseUpdate { idle_ms: Some(1000), ..LeaseUpdate::default() };
            lease.update(&update).unwrap();
            assert_eq!(lease.check(&ports), None);
            lease.idle.as_mut().unwrap().due = Duration::ZERO;
            assert_eq!(lease.check(&ports), None, "the guest is asked first");
            assert_eq!(lease.check(&ports), None, "and not waited for");
            let (query, end) = port_channel::receive(&guest).unwrap().unwrap();
            assert_eq!(query, port_channel::PortRequest::Idle);
            UnixStream::from(end).write_all(&u64::to_le_bytes(bytes)).unwrap();
            assert_eq!(lease.check(&ports).is_some(), is_over, "{bytes}");
        }
    }

    #[test]
    fn asks_again_if_the_guest_says_nothing() {
        let (ports, guest) = ports();
        let mut lease = Lease::new(true);
        lease.update(&LeaseUpdate { idle_ms: Some(1), ..LeaseUpdate::default() }).unwrap();
        lease.idle.as_mut().unwrap().due = Duration::ZERO;
        assert_eq!(lease.check(&ports), None);
        drop(port_channel::receive(&guest).unwrap());
        assert_eq!(lease.check(&ports), None);
        let idle = lease.idle.as_ref().unwrap();
        assert!(idle.query.is_none() && idle.due > now());
    }
}
