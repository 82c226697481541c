//! The guest as an image, for clusters whose nodes have a registry: the same files as in the ConfigMaps, in one layer.

use std::io;

use bastide::{Error, ErrorKind, Result};
use bastide_guest_bin::pod_files;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::pod::architecture;

/// The folder of the image with the loader in it.
pub(crate) const FOLDER: &str = "bin";

/// The length of everything in an archive is a multiple of this.
const BLOCK: usize = 512;

/// What an archive of an image is called that nobody named.
const NAME: &str = "bastide-guest";

/// An image with the guest of this program in it, as an archive: an OCI layout that also has what `docker load` reads. Its name
/// there is `name`, or `bastide-guest` with the program's version. Built twice it has the same bytes.
///
/// # Errors
///
/// Fails if this program is damaged.
pub fn guest_image(name: Option<&str>) -> Result<Vec<u8>> {
    let damaged = |error: io::Error| {
        Error::new(ErrorKind::Internal, format!("cannot take the guest apart: {error}"))
    };
    let unnamed = format!("{NAME}:{}", env!("CARGO_PKG_VERSION"));
    let name = name.unwrap_or(&unnamed);
    let mut layer = Archive::default();
    layer.folder(&format!("{FOLDER}/"));
    for file in pod_files(usize::MAX).map_err(damaged)?.into_iter().flatten() {
        layer.file(&format!("{FOLDER}/{}", file.name), 0o555, file.content);
    }
    let layer = layer.finish();
    let mut image = Archive::default();
    let layer = image.blob(&layer);
    let config = json!({
        "architecture": architecture(), "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
    });
    let config = image.blob(config.to_string().as_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.described("application/vnd.oci.image.config.v1+json"),
        "layers": [layer.described("application/vnd.oci.image.layer.v1.tar")],
    });
    let manifest = image.blob(manifest.to_string().as_bytes());
    let mut described = manifest.described("application/vnd.oci.image.manifest.v1+json");
    described["annotations"] =
        json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": name });
    let index = json!({ "schemaVersion": 2, "manifests": [described] });
    image.file("index.json", 0o444, index.to_string().as_bytes());
    image.file("oci-layout", 0o444, br#"{"imageLayoutVersion":"1.0.0"}"#);
    let saved = json!([{ "Config": config.path, "RepoTags": [name], "Layers": [layer.path] }]);
    image.file("manifest.json", 0o444, saved.to_string().as_bytes());
    Ok(image.finish())
}

/// A part of an image, known by its content.
struct Blob {
    digest: String,
    path: String,
    size: usize,
}

impl Blob {
    fn described(&self, kind: &str) -> Value {
        json!({ "mediaType": kind, "digest": self.digest, "size": self.size })
    }
}

/// A tar archive of files that nobody changed at any time.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn folder(&mut self, path: &str) {
        self.header(path, 0o755, 0, b'5');
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.header(path, mode, content.len(), b'0');
        self.0.extend_from_slice(content);
        self.pad(BLOCK);
    }

    fn blob(&mut self, content: &[u8]) -> Blob {
        let hash = hex::encode(Sha256::digest(content));
        let path = format!("blobs/sha256/{hash}");
        self.file(&path, 0o444, content);
        Blob { digest: format!("sha256:{hash}"), path, size: content.len() }
    }

    /// The head of an entry, as POSIX has it (`ustar`).
    fn header(&mut self, path: &str, mode: u32, size: usize, kind: u8) {
        let mut head = Vec::with_capacity(BLOCK);
        let mut field = |text: &str, room: usize| {
            head.extend(text.bytes().chain(std::iter::repeat(0)).take(room));
        };
        field(path, 100);
        field(&format!("{mode:07o}"), 8);
        field("0000000", 8);
        field("0000000", 8);
        field(&format!("{size:011o}"), 12);
        field("00000000000", 12);
        // The sum is over spaces in its own place.
        field("        ", 8);
        field(char::from(kind).encode_utf8(&mut [0; 4]), 1);
        field("", 100);
        field("ustar", 6);
        field("00", 2);
        field("", 247);
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        let written = format!("{sum:06o}\0 ");
        head.splice(148..156, written.bytes());
        self.0.extend_from_slice(&head);
    }

    fn pad(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn is_an_archive_that_others_read_with_what_its_digests_say() {
        let image = guest_image(Some("registry.example/guest:1")).unwrap();
        assert!(image == guest_image(Some("registry.example/guest:1")).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("image.tar");
        std::fs::write(&archive, image).unwrap();
        let unpack = |archive: &std::path::Path| {
            let mut tar = Command::new("tar");
            tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(folder.path());
            assert!(tar.status().unwrap().success());
        };
        unpack(&archive);
        let read = |path: &str| std::fs::read(folder.path().join(path)).unwrap();
        let json = |path: &str| serde_json::from_slice::<Value>(&read(path)).unwrap();
        let path = |digest: &Value| format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"));
        let manifest = json(&path(&json("index.json")["manifests"][0]["digest"]));
        let layer = path(&manifest["layers"][0]["digest"]);
        assert_eq!(manifest["layers"][0]["size"], read(&layer).len());
        unpack(&folder.path().join(&layer));
        let files = pod_files(usize::MAX).unwrap();
        for file in files.into_iter().flatten() {
            assert!(read(&format!("{FOLDER}/{}", file.name)) == file.content, "{}", file.name);
        }
        assert_eq!(json("manifest.json")[0]["RepoTags"][0], "registry.example/guest:1");
    }
}
