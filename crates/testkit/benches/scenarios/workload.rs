//! What is copied, saved and restored: made once in memory, the same in each run, and removed at the end.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::random::Rng;

const MIB: u64 = 1 << 20;

/// How long one of many files is.
const SMALL: u64 = 1 << 10;

const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// A folder of the host, for workspaces to be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Workload {
    /// So many files of 1 KiB, all different, in a hundred folders.
    Files(usize),
    /// One file of so many bytes: its first half random, its second half text that shrinks to 46 %.
    Large(u64),
}

impl Workload {
    /// Where it is.
    pub(crate) fn folder(self) -> PathBuf {
        top().join(self.to_string())
    }

    /// Makes it, at its first use.
    pub(crate) fn make(self) -> io::Result<PathBuf> {
        let folder = self.folder();
        if folder.exists() {
            return Ok(folder);
        }
        fs::create_dir_all(&folder)?;
        match self {
            Self::Files(count) => files(&folder, count)?,
            Self::Large(bytes) => large(&Self::only_file(&folder), bytes)?,
        }
        Ok(folder)
    }

    /// How many bytes its files have together.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Files(count) => u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(SMALL),
            Self::Large(bytes) => bytes,
        }
    }

    /// The file of a folder that has only one.
    pub(crate) fn only_file(folder: &Path) -> PathBuf {
        folder.join("large")
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(count) => write!(f, "{count}-files"),
            Self::Large(bytes) => write!(f, "{bytes}-bytes"),
        }
    }
}

fn top() -> PathBuf {
    PathBuf::from(format!("/dev/shm/bastide-bench-{}", std::process::id()))
}

/// Removes everything that was made when this is dropped.
#[derive(Debug)]
pub(crate) struct Cleared;

impl Drop for Cleared {
    fn drop(&mut self) {
        // Where nothing was made there is nothing.
        drop(fs::remove_dir_all(top()));
    }
}

fn files(folder: &Path, count: usize) -> io::Result<()> {
    let mut text = Text::new();
    for number in 0..count {
        let part = folder.join((number % 100).to_string());
        if number < 100 {
            fs::create_dir_all(&part)?;
        }
        let mut file = File::create(part.join(number.to_string()))?;
        text.write(&mut file, SMALL)?;
    }
    Ok(())
}

fn large(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = Rng::new(SEED);
    let random_bytes = bytes / 2;
    for _ in 0..random_bytes / 8 {
        file.write_all(&random.next().to_le_bytes())?;
    }
    let mut text = Text::new();
    let mut left = bytes - random_bytes / 8 * 8;
    while left > 0 {
        let some = left.min(MIB);
        text.write(&mut file, some)?;
        left -= some;
    }
    file.flush()
}

/// Lines of words, some of which are more frequent than others: denser than source code, lighter than noise.
struct Text {
    random: Rng,
    words: Vec<String>,
}

impl Text {
    fn new() -> Self {
        let mut random = Rng::new(SEED);
        let letters: Vec<char> = "etaoinshrdlucmfwypvbgk_".chars().collect();
        let word = |random: &mut Rng| -> String {
            let length = 2 + random.below(9);
            (0..length).map(|_| letters[random.below(letters.len())]).collect()
        };
        let words = (0..4096).map(|_| word(&mut random)).collect();
        Self { random, words }
    }

    /// Writes so many bytes.
    fn write(&mut self, file: &mut impl Write, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let mut text = Vec::with_capacity(bytes + 64);
        while text.len() < bytes {
            for _ in 0..self.random.below(12) {
                // The lower of three, so that the first words are the frequent ones.
                let count = self.words.len();
                let at = (0..3).map(|_| self.random.below(count)).min().unwrap_or(0);
                text.extend_from_slice(self.words[at].as_bytes());
                text.push(b' ');
            }
            writeln!(text, "= {};", self.random.below(100_000))?;
        }
        file.write_all(&text[..bytes])
    }
}
