//! The files by which a pod gets the guest: the loader, and the guest in parts.

use std::io;
use std::sync::OnceLock;

use crate::{EmbeddedProgram, GUEST};

static LOADER: EmbeddedProgram = EmbeddedProgram::new(
    "loader",
    include_bytes!(concat!(env!("OUT_DIR"), "/bastide-loader.packed")),
    env!("BASTIDE_LOADER_LENGTH"),
    env!("BASTIDE_LOADER_HASH"),
    env!("BASTIDE_LOADER_PLACE"),
);

/// How hard the guest is compressed for pods: it takes no longer than it saves on the way.
const LEVEL: i32 = 3;

/// The guest as the loader unpacks it.
static PACKED_GUEST: OnceLock<Vec<u8>> = OnceLock::new();

/// A file that lies in the folder of the loader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: &'static [u8],
}

/// The loader and the parts of the guest, in groups of at most `most` bytes: each is one ConfigMap, the first with the
/// loader in it. Together in one folder, the file `loader` starts the guest when it is told
/// [its hash](crate::HASH).
///
/// ```
/// let groups = bastide_guest_bin::pod_files(1_000_000)?;
/// assert!(groups.len() > 1 && groups[0][0].name == "loader");
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
///
/// Fails if this program is damaged, or if the loader alone is larger than a group may be.
pub fn pod_files(most: usize) -> io::Result<Vec<Vec<PodFile>>> {
    let loader = LOADER.bytes()?;
    let room = most.checked_sub(loader.len()).filter(|room| *room > 0);
    let room = room.ok_or_else(|| io::Error::other("there is no room for the loader"))?;
    let guest = match PACKED_GUEST.get() {
        Some(guest) => guest,
        None => {
            let packed = zstd::bulk::compress(GUEST.bytes()?, LEVEL)?;
            PACKED_GUEST.get_or_init(|| packed)
        }
    };
    let (first, rest) = guest.split_at(room.min(guest.len()));
    let part = |number, content| PodFile { name: format!("part-{number}"), content };
    let loader = PodFile { name: "loader".to_owned(), content: loader };
    let others = (1..).zip(rest.chunks(most)).map(|(number, bytes)| vec![part(number, bytes)]);
    Ok(std::iter::once(vec![loader, part(0, first)]).chain(others).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_two_groups_of_a_megabyte() {
        let groups = pod_files(1_000_000).unwrap();
        let sizes: Vec<usize> =
            groups.iter().map(|group| group.iter().map(|file| file.content.len()).sum()).collect();
        assert!(sizes.len() <= 2 && sizes.iter().all(|size| *size <= 1_000_000), "{sizes:?}");
        assert!(
            LOADER.bytes().unwrap().len() <= 150_000,
            "the loader is no larger than it must be"
        );
        assert!(pod_files(1000).is_err());
    }
}
