//! What rclone is configured with: remotes, their names, and the file they are in.

use crate::Result;
use crate::error::raise;
use crate::mount::RclonePattern;
use crate::posix_path::PosixPath;
use crate::secret::Secret;
use crate::text::{is_blank, trim};

/// One remote of rclone, with everything needed to write its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RcloneConfig {
    /// Its name, which is that of its section.
    pub remote_name: String,
    /// The path in it.
    pub remote_path: String,
    /// What sort of remote it is; part of names that are made up.
    pub remote_kind: &'static str,
    /// The word of the mount, for errors.
    pub mount_type: String,
    /// The lines of its section, without the header.
    pub settings: Secret,
    /// Whether it can only be read.
    pub read_only: bool,
    /// A file in the sandbox that has the section already; the settings are added to it.
    pub config_file: Option<PosixPath>,
}

impl RcloneConfig {
    /// The configuration, where no file has it.
    #[must_use]
    pub fn text(&self) -> Secret {
        Secret::from(format!("[{}]\n{}\n", self.remote_name, &*self.settings))
    }

    /// The configuration that `content`, read from `path` in the sandbox, makes with the settings
    /// added.
    ///
    /// # Errors
    ///
    /// `MountConfigError` if it is empty or lacks the section.
    pub fn text_from_file(&self, path: &PosixPath, content: &[u8]) -> Result<Secret> {
        let refused = |message: &str| {
            raise::mount_config(message)
                .with_context("type", self.mount_type.as_str())
                .with_context("path", path.as_str())
        };
        let text = String::from_utf8_lossy(content);
        if trim(&text).is_empty() {
            return Err(refused("rclone config file is empty"));
        }
        let supplemented = supplemented(&text, &self.remote_name, &self.settings);
        supplemented.map(Secret::from).ok_or_else(|| {
            refused(MISSING_SECTION).with_context("remote_name", self.remote_name.as_str())
        })
    }
}

const MISSING_SECTION: &str = "rclone config missing required remote section";

/// Adds `settings` at the end of the section of `remote_name`, and leaves everything else alone.
/// Where a setting is there twice, rclone believes the later one.
///
/// ```
/// use bastide_model::mount::supplement_rclone_config;
///
/// let text = "[r]\ntype = box\n\n[other]\n";
/// let text = supplement_rclone_config(text, "r", "type = s3", Some("s3_mount"))?;
/// assert_eq!(text, "[r]\ntype = box\ntype = s3\n\n[other]\n");
/// # Ok::<(), bastide_model::Error>(())
/// ```
///
/// # Errors
///
/// `MountConfigError` if there is no such section.
pub fn supplement_rclone_config(
    text: &str,
    remote_name: &str,
    settings: &str,
    mount_type: Option<&str>,
) -> Result<String> {
    supplemented(text, remote_name, settings).ok_or_else(|| {
        raise::mount_config(MISSING_SECTION)
            .with_context("type", named(mount_type))
            .with_context("remote_name", remote_name)
    })
}

/// How errors call the mount.
fn named(mount_type: Option<&str>) -> &str {
    mount_type.filter(|word| !word.is_empty()).unwrap_or("mount")
}

fn supplemented(text: &str, remote_name: &str, settings: &str) -> Option<String> {
    let header = format!("[{remote_name}]");
    let found = find_header(text, |line| line == header)?;
    // What follows the header starts at the end of its line, so that blank lines before the next
    // header belong to that one.
    let body = &text[found.end..];
    let body_end = find_header(body, |line| {
        line.len() > "[]".len() && line.starts_with('[') && line.ends_with(']')
    })
    .map_or(text.len(), |next| found.end + next.start);
    let (section, after) = text.split_at(body_end);
    Some(format!("{}\n{settings}\n{after}", section.trim_end_matches('\n')))
}

/// Where a header is: from the blanks in front of its line to the last blank behind it that a line
/// can end after.
struct Header {
    start: usize,
    end: usize,
}

/// The first line that, without the blanks around it, is a header. Blanks include line ends, so
/// empty lines in front of it and behind it are part of what is found.
fn find_header(text: &str, is_header: impl Fn(&str) -> bool) -> Option<Header> {
    let mut start = 0;
    loop {
        let rest = &text[start..];
        let line_at = start + rest.len() - rest.trim_start_matches(is_blank).len();
        let line = &text[line_at..];
        let line = &line[..line.find('\n').unwrap_or(line.len())];
        let header = line.trim_end_matches(is_blank);
        let behind = line_at + header.len();
        if is_header(header) {
            return Some(Header { start, end: last_line_end(text, behind) });
        }
        start = behind + text[behind..].find('\n')? + 1;
    }
}

/// The last place among the blanks from `at` on where a line ends.
fn last_line_end(text: &str, at: usize) -> usize {
    let rest = &text[at..];
    let blanks = &rest[..rest.len() - rest.trim_start_matches(is_blank).len()];
    let end = if blanks.len() == rest.len() { Some(blanks.len()) } else { blanks.rfind('\n') };
    at + end.unwrap_or(0)
}

impl RclonePattern {
    /// The remote's name: the one that was given, or one for each sort of remote of a session.
    ///
    /// # Errors
    ///
    /// `MountConfigError` if none was given and there is no `remote_kind` to make one up from.
    pub fn remote_name_for(
        &self,
        session: &str,
        remote_kind: &str,
        mount_type: Option<&str>,
    ) -> Result<String> {
        match self.remote_name.as_deref() {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ if remote_kind.is_empty() => {
                Err(raise::mount_config("rclone mount requires remote_kind")
                    .with_context("type", named(mount_type)))
            }
            _ => Ok(format!("sandbox_{remote_kind}_{session}")),
        }
    }
}

/// The path of `prefix` in a bucket or a container.
///
/// ```
/// use bastide_model::mount::join_remote_path;
///
/// assert_eq!(join_remote_path("bucket", Some("/a/b/")), "bucket/a/b/");
/// ```
#[must_use]
pub fn join_remote_path(root: &str, prefix: Option<&str>) -> String {
    match prefix {
        Some(prefix) => format!("{root}/{}", prefix.trim_start_matches('/')),
        None => root.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_to_the_right_section() {
        let cases = [
            ("[r]\na = 1\n\n\n", Some("[r]\na = 1\nX\n")),
            ("\n\n [r] \na = 1", Some("\n\n [r] \na = 1\nX\n")),
            ("[r]\n\n\n[z]\n", Some("[r]\nX\n\n[z]\n")),
            ("[r]  \u{b}", Some("[r]  \u{b}\nX\n")),
            ("a [r]\n[r] # c\n", None),
            ("[r]\n[]\n", Some("[r]\n[]\nX\n")),
            ("\n\n\n", None),
        ];
        for (text, want) in cases {
            assert_eq!(supplemented(text, "r", "X").as_deref(), want, "text {text:?}");
        }
    }
}
