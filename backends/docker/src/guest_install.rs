//! How the guest gets into a container: by a folder the engine shares with this host, which is proved and
//! not assumed; else by a volume that is filled once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bastide::archive::tar::{TarKind, TarMember, TarWriter};
use bastide::{Error, ErrorKind, Result, SessionId};
use bastide_guest_bin::{GuestBinary, HASH};
use bastide_proto::container::{GUEST_PATH, HOST_PATH};
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, VolumeCreateRequest};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, DownloadFromContainerOptionsBuilder,
    RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use futures::StreamExt;

use crate::container::guest_volume;
use crate::engine::{Engine, LARGE, unless_missing};
use crate::state::HOME_LABEL;

/// What only this host has written, in the folder a container shares.
const PROOF: &str = "proof";

/// The most that is read of a proof: a header, a little data, and two empty blocks.
const MOST_PROOF: usize = 16 * 1024;

/// Where is noted what was found out about engines.
const ENGINES: &str = "engines";

/// Whether this home has ever had sessions in containers.
#[must_use]
pub fn was_used(home: &Path) -> bool {
    home.join(ENGINES).exists()
}

/// Notes that sessions of this home are in containers.
pub(crate) fn note_use(home: &Path) -> io::Result<()> {
    fs::create_dir_all(home.join(ENGINES))
}

/// Whether an engine was seen to share this host's files before.
pub(crate) fn is_known(home: &Path, engine_id: &str) -> bool {
    known(home, engine_id).is_some_and(|path| path.exists())
}

/// Remembers that an engine shares this host's files. Losing this costs a look.
pub(crate) fn remember(home: &Path, engine_id: &str) {
    if let Some(path) = known(home, engine_id) {
        drop(fs::write(&path, b""));
    }
}

fn known(home: &Path, engine_id: &str) -> Option<PathBuf> {
    let name: String = engine_id.chars().filter(char::is_ascii_alphanumeric).collect();
    (!name.is_empty()).then(|| home.join(ENGINES).join(format!("shares-{name}")))
}

/// Puts a proof where the engine finds it only if it sees the same files; what it says is random.
pub(crate) fn leave_proof(run: &Path) -> io::Result<String> {
    let proof = format!("proof {}", SessionId::random());
    fs::write(run.join(PROOF), &proof)?;
    Ok(proof)
}

/// Whether a container that was made and not started has the proof in it.
pub(crate) async fn is_shared(engine: &Engine, container: &str, proof: &str) -> Result<bool> {
    let path = format!("{HOST_PATH}/{PROOF}");
    let options = DownloadFromContainerOptionsBuilder::default().path(&path).build();
    let mut stream = engine.docker.download_from_container(container, Some(options));
    let mut read = Vec::new();
    let reading = async {
        while let Some(chunk) = stream.next().await {
            read.extend_from_slice(&chunk?);
            if read.len() > MOST_PROOF {
                break;
            }
        }
        Ok(())
    };
    let done = engine.ask(LARGE, "look into the container", reading).await;
    unless_missing(done)?;
    Ok(read.windows(proof.len()).any(|window| window == proof.as_bytes()))
}

/// Takes the proof away again, before anything runs in the container.
pub(crate) fn remove_proof(run: &Path) {
    // What stays is no secret.
    drop(fs::remove_file(run.join(PROOF)));
}

/// Fills the volume of the guest, unless it holds it already. It is filled through a container that is
/// made and never started, so nothing in the image has to work.
pub(crate) async fn fill_volume(
    engine: &Engine,
    image: &str,
    guest: &GuestBinary,
    home: &str,
) -> Result<()> {
    let name = guest_volume();
    let request = VolumeCreateRequest {
        name: Some(name.clone()),
        labels: Some(
            [("bastide.guest", HASH), (HOME_LABEL, home)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        ),
        ..VolumeCreateRequest::default()
    };
    engine.ask(LARGE, "make a volume", engine.docker.create_volume(request)).await?;
    let folder = bastide_proto::container::BIN_PATH;
    let mount = Mount {
        typ: Some(MountType::VOLUME),
        source: Some(name),
        target: Some(folder.to_owned()),
        read_only: Some(false),
        ..Mount::default()
    };
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![GUEST_PATH.to_owned()]),
        labels: Some(
            [
                (HOME_LABEL.to_owned(), home.to_owned()),
                ("bastide.filler".to_owned(), String::new()),
            ]
            .into(),
        ),
        host_config: Some(HostConfig {
            mounts: Some(vec![mount]),
            network_mode: Some("none".to_owned()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let made = engine.docker.create_container(None, body);
    let made = engine.ask(LARGE, "make a container", made).await?;
    let filled = fill(engine, &made.id, folder, guest).await;
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    let removed = engine.docker.remove_container(&made.id, Some(options));
    unless_missing(engine.ask(LARGE, "remove a container", removed).await)?;
    filled
}

async fn fill(engine: &Engine, container: &str, folder: &str, guest: &GuestBinary) -> Result<()> {
    let unpacked = |error: io::Error| {
        Error::new(ErrorKind::Internal, format!("cannot unpack the guest: {error}"))
    };
    let size = guest.bytes().map_err(unpacked)?.len();
    let options = ContainerArchiveInfoOptionsBuilder::default().path(GUEST_PATH).build();
    let look = engine.docker.get_container_archive_info(container, Some(options));
    let found = engine.ask(LARGE, "look into a container", look).await;
    if found.is_ok_and(|found| u64::try_from(found.size).ok() == u64::try_from(size).ok()) {
        return Ok(());
    }
    let archive = archive(guest).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot pack the guest: {error}"))
    })?;
    let options = UploadToContainerOptionsBuilder::default().path(folder).build();
    let body = bollard::body_full(archive.into());
    let sent = engine.docker.upload_to_container(container, Some(options), body);
    engine.ask(LARGE, "fill the volume of the guest", sent).await
}

fn archive(guest: &GuestBinary) -> io::Result<Vec<u8>> {
    let bytes = guest.bytes()?;
    let mut archive = Vec::with_capacity(bytes.len() + 4096);
    let mut writer = TarWriter::new(&mut archive);
    let mut member = TarMember::new(&b"guest"[..], TarKind::File);
    member.size = u64::try_from(bytes.len()).map_err(io::Error::other)?;
    member.mode = 0o555;
    writer.append(&member, &mut &bytes[..]).map_err(io::Error::other)?;
    writer.finish().map_err(io::Error::other)?;
    Ok(archive)
}
