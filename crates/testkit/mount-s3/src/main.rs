//! `mount-s3` as far as the tests call it, over the library that the real one is made of. Not the real command line.

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use mountpoint_s3_client::S3CrtClient;
use mountpoint_s3_client::config::{
    AddressingStyle, Allocator, EndpointConfig, S3ClientAuthConfig, S3ClientConfig, Uri,
};
use mountpoint_s3_fs::fuse::S3FuseFilesystem;
use mountpoint_s3_fs::fuse::config::{FuseOptions, FuseSessionConfig, MountPoint};
use mountpoint_s3_fs::fuse::session::FuseSession;
use mountpoint_s3_fs::memory::{CandidateSize, PagedPool};
use mountpoint_s3_fs::prefetch::Prefetcher;
use mountpoint_s3_fs::s3::{Bucket, Prefix, S3Path};
use mountpoint_s3_fs::{Runtime, S3Filesystem, S3FilesystemConfig, Superblock, SuperblockConfig};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// As the real one: parts of this size are read and written.
const PART: usize = 8 << 20;

/// As the real one.
const THREADS: usize = 16;

/// How long a mount may take to stand.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Arguments {
    read_only: bool,
    unsigned: bool,
    overwrite: bool,
    delete: bool,
    foreground: bool,
    no_checksums: bool,
    region: Option<String>,
    endpoint: Option<String>,
    prefix: String,
    words: Vec<String>,
}

impl Arguments {
    fn parse(mut given: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut parsed = Self::default();
        while let Some(word) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--read-only" => parsed.read_only = true,
                "--no-sign-request" => parsed.unsigned = true,
                "--allow-overwrite" => parsed.overwrite = true,
                "--allow-delete" => parsed.delete = true,
                "--foreground" | "-f" => parsed.foreground = true,
                "--region" => parsed.region = Some(value()?),
                "--endpoint-url" => parsed.endpoint = Some(value()?),
                "--prefix" => parsed.prefix = value()?,
                "--upload-checksums" => parsed.no_checksums = value()? == "off",
                _ if word.starts_with('-') => return Err(format!("unknown option {word}").into()),
                _ => parsed.words.push(word),
            }
        }
        Ok(parsed)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let [bucket, folder] = arguments.words.as_slice() else {
        return Err("usage: mount-s3 [OPTIONS] BUCKET FOLDER".into());
    };
    if arguments.foreground {
        let session = mount(&arguments, bucket, Path::new(folder))?;
        return Ok(session.join()?);
    }
    // The same in the background; this ends when the mount stands, as that of the real one does.
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--foreground")
        .args(std::env::args().skip(1))
        .stdin(Stdio::null())
        .spawn()?;
    let begin = Instant::now();
    while !is_mounted(folder)? {
        if let Some(status) = child.try_wait()? {
            return Err(format!("cannot mount {bucket}: {status}").into());
        }
        if begin.elapsed() > TIMEOUT {
            child.kill()?;
            return Err(format!("{bucket} is not mounted after {TIMEOUT:?}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn is_mounted(folder: &str) -> Outcome<bool> {
    let folder = std::fs::canonicalize(folder)?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let wanted = folder.to_str().ok_or("a folder whose name is not UTF-8")?;
    Ok(mounts.lines().any(|line| {
        let mut fields = line.split(' ');
        fields.next() == Some("mountpoint-s3") && fields.next() == Some(wanted)
    }))
}

fn mount(arguments: &Arguments, bucket: &str, folder: &Path) -> Outcome<FuseSession> {
    let region = arguments.region.as_deref().unwrap_or("us-east-1");
    let mut endpoint = EndpointConfig::new(region).addressing_style(AddressingStyle::Path);
    if let Some(address) = &arguments.endpoint {
        endpoint = endpoint.endpoint(Uri::new_from_str(&Allocator::default(), address)?);
    }
    let auth = match arguments.unsigned {
        true => S3ClientAuthConfig::NoSigning,
        false => S3ClientAuthConfig::Default,
    };
    let pool = PagedPool::config()
        .with_candidate_sizes([CandidateSize::new(PART)])
        .with_minimum_memory_limit()
        .build();
    let config = S3ClientConfig::new()
        .endpoint_config(endpoint)
        .auth_config(auth)
        .part_size(PART)
        .read_backpressure(true)
        .initial_read_window(1 << 20)
        .memory_pool(pool.clone());
    let client = S3CrtClient::new(config)?;
    let runtime = Runtime::new(client.event_loop_group());
    let mut settings = S3FilesystemConfig {
        read_only: arguments.read_only,
        allow_delete: arguments.delete,
        allow_overwrite: arguments.overwrite,
        ..S3FilesystemConfig::default()
    };
    if arguments.no_checksums {
        settings.upload_checksum_algorithm = None;
    }
    let path = S3Path::new(Bucket::new(bucket)?, Prefix::new(&arguments.prefix)?);
    let prefetcher = Prefetcher::default_builder(client.clone());
    let blocks = SuperblockConfig {
        cache_config: settings.cache_config.clone(),
        s3_personality: settings.s3_personality,
    };
    let superblock = Superblock::new(client.clone(), path, blocks);
    let fs = S3Filesystem::new(client, prefetcher, pool, runtime, superblock, settings);
    let options = FuseOptions { read_only: arguments.read_only, ..FuseOptions::default() };
    let place = MountPoint::new(folder)?;
    let session = FuseSessionConfig::new(place, options, THREADS)?;
    Ok(FuseSession::new(S3FuseFilesystem::new(fs, None), session)?)
}
