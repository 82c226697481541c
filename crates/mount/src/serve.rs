//! Answers for every mount until the warden says otherwise or is gone.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{io, thread};

use tokio::runtime::{Handle, Runtime};
use tokio::task::AbortHandle;

use crate::cache::Cache;
use crate::confine::confine;
use crate::control::{Channel, Command, Report};
use crate::fs::Fs;
use crate::fuse::Device;
use crate::fuse::abi::{BUFFER, Op, Request};
use crate::spec::{Source, Start};
use crate::store::Store;

/// Threads that read requests of one mount; most are answered by whoever reads them.
const READERS: usize = 2;
/// How long what is being written may take to be stored at the end, unless the warden says.
const LAST_STORES: Duration = Duration::from_secs(30);
/// How long what is under way may take to be ended after that.
const END: Duration = Duration::from_secs(2);

/// Does what the warden says.
///
/// # Errors
/// If it says nothing that can be done.
pub fn serve(channel: Channel) -> io::Result<()> {
    let Some((command, fds)) = channel.receive::<Command>()? else { return Ok(()) };
    match command {
        Command::Probe { mount } => {
            let error = runtime()?.block_on(crate::probe::probe(&mount)).err();
            channel.send(&Report::Probed { error })
        }
        Command::Start(start) => {
            let channel = Arc::new(channel);
            let result = run(&start, fds, &channel);
            if let Err(error) = &result {
                channel.send(&Report::Failed { message: error.to_string() })?;
            }
            result
        }
        Command::Counts | Command::Stop { .. } => Err(io::Error::other("nothing was started")),
    }
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()
}

fn run(start: &Start, fds: Vec<OwnedFd>, channel: &Arc<Channel>) -> io::Result<()> {
    if fds.len() != start.mounts.len() {
        let (given, wanted) = (fds.len(), start.mounts.len());
        return Err(io::Error::other(format!("{given} descriptors for {wanted} mounts")));
    }
    // Whoever looks after the session next waits until nothing is stored from here any more, and then finds the device
    // closed as well: both go with this process, in this order.
    let held: &'static File = Box::leak(Box::new(File::open(&start.staging)?));
    held.try_lock_shared().map_err(io::Error::other)?;
    let cache = start.cache.as_ref().map(Cache::open).transpose()?.map(Arc::new);
    let mut mounts = Vec::new();
    for (spec, fd) in start.mounts.iter().zip(fds) {
        let store = Store::open(spec).map_err(io::Error::other)?;
        let fs = Fs::new(spec, store, start, cache.clone(), Arc::clone(channel))?;
        let device = Device::new(fd);
        if spec.resumed {
            let why = |errno| io::Error::other(format!("the kernel repeats no requests: {errno}"));
            device.request_resend().map_err(why)?;
        }
        mounts.push((Arc::new(fs), Arc::new(device)));
    }
    let mut folders: Vec<&Path> = vec![&start.staging];
    folders.extend(start.cache.as_ref().map(|cache| cache.folder.as_path()));
    // Before there is a second thread, which would not be confined.
    confine(&folders, &ports(start))?;
    let runtime = runtime()?;
    channel.send(&Report::Ready)?;
    let all: Vec<_> = mounts.iter().map(|(fs, _)| Arc::clone(fs)).collect();
    for (fs, device) in mounts {
        answer(&fs, &device, runtime.handle(), channel)?;
    }
    let last_stores = listen(channel, &all);
    runtime.block_on(async {
        let stores = futures::future::join_all(all.iter().map(|fs| fs.store_everything()));
        drop(tokio::time::timeout(last_stores, stores).await);
    });
    // Whoever closed a file may be storing it still: that ends here, so that the file can be kept. Reading threads wait
    // in the kernel and cannot be joined.
    runtime.shutdown_timeout(END);
    all.iter().for_each(|fs| fs.keep_unstored());
    Ok(())
}

/// The ports that the stores listen on, those where tokens are renewed, and that of names.
fn ports(start: &Start) -> Vec<u16> {
    let mut ports = vec![53, 443];
    for mount in &start.mounts {
        let endpoint = match &mount.source {
            Source::S3 { endpoint, .. } | Source::Gcs { endpoint, .. } => endpoint,
            Source::R2 { custom_domain, .. } => custom_domain,
            Source::AzureBlob { endpoint, auth, .. } => {
                if matches!(auth, crate::spec::AzureAuth::ManagedIdentity { .. }) {
                    ports.push(80);
                }
                endpoint
            }
        };
        let url = endpoint.as_deref().and_then(|endpoint| reqwest::Url::parse(endpoint).ok());
        ports.extend(url.and_then(|url| url.port_or_known_default()));
    }
    ports
}

/// Waits for the warden's requests, and for its end: how long the last stores may take.
fn listen(channel: &Channel, mounts: &[Arc<Fs>]) -> Duration {
    while let Ok(Some((command, _))) = channel.receive::<Command>() {
        match command {
            Command::Counts => {
                for fs in mounts {
                    let (mount, counts) = (fs.id().to_owned(), fs.counts());
                    drop(channel.send(&Report::Counts { mount, counts }));
                }
            }
            Command::Stop { within_ms } => {
                return within_ms.map_or(LAST_STORES, Duration::from_millis);
            }
            Command::Probe { .. } | Command::Start(_) => {}
        }
    }
    LAST_STORES
}

/// Requests that wait for a store, and how to stop waiting.
type PendingRequests = Arc<Mutex<HashMap<u64, AbortHandle>>>;

fn answer(
    fs: &Arc<Fs>,
    device: &Arc<Device>,
    runtime: &Handle,
    channel: &Arc<Channel>,
) -> io::Result<()> {
    let waiting = PendingRequests::default();
    let last = Arc::new(());
    for number in 0..READERS {
        let (fs, device, runtime) = (Arc::clone(fs), Arc::clone(device), runtime.clone());
        let (waiting, channel) = (Arc::clone(&waiting), Arc::clone(channel));
        let last = Arc::clone(&last);
        thread::Builder::new().name(format!("{}-{number}", fs.id())).spawn(move || {
            let mut buffer = vec![0; BUFFER];
            let _context = runtime.enter();
            while let Ok(Some(request)) = device.next(&mut buffer) {
                take(&fs, &device, &runtime, &waiting, request);
            }
            if Arc::into_inner(last).is_some() {
                drop(channel.send(&Report::Ended { mount: fs.id().to_owned() }));
            }
        })?;
    }
    Ok(())
}

/// Answers a request at once if that needs nobody else, and later otherwise.
fn take(
    fs: &Arc<Fs>,
    device: &Arc<Device>,
    runtime: &Handle,
    waiting: &PendingRequests,
    request: Request,
) {
    let unique = request.unique;
    if let Op::Interrupt { unique } = request.op {
        interrupt(device, waiting, unique);
        return;
    }
    // Another process may have done any part of it.
    if request.was_taken_before() && !matches!(request.op, Op::Init(_)) {
        device.answer(unique, Err(rustix::io::Errno::IO));
        return;
    }
    let may_be_interrupted = matches!(
        request.op,
        Op::Lookup { .. } | Op::GetAttr | Op::Read { .. } | Op::ReadFolder { .. }
    );
    let (fs, device2) = (Arc::clone(fs), Arc::clone(device));
    let mut work = Box::pin(async move {
        if let Some(answer) = fs.answer(request).await {
            device2.answer(unique, answer);
        }
    });
    let mut context = Context::from_waker(Waker::noop());
    if pin!(&mut work).poll(&mut context) == Poll::Ready(()) {
        return;
    }
    if !may_be_interrupted {
        runtime.spawn(work);
        return;
    }
    let waiting2 = Arc::clone(waiting);
    let mut table = lock(waiting);
    let task = runtime.spawn(async move {
        work.await;
        lock(&waiting2).remove(&unique);
    });
    table.insert(unique, task.abort_handle());
}

fn lock(waiting: &PendingRequests) -> std::sync::MutexGuard<'_, HashMap<u64, AbortHandle>> {
    waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whoever waits was told to end.
fn interrupt(device: &Device, waiting: &PendingRequests, unique: u64) {
    if let Some(task) = lock(waiting).remove(&unique) {
        task.abort();
        device.answer(unique, Err(rustix::io::Errno::INTR));
    }
}
