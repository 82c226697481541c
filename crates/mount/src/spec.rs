//! What the program is configured with: which stores to answer for, with which keys, and where it may keep files.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The only message the program is sent before it works. The `/dev/fuse` descriptors of `mounts` come
/// with it, in the same order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The read cache that sessions of one home share; none reads everything from the store.
    #[serde(default)]
    pub cache: Option<Cache>,
    /// A folder of this session alone, for files that are being written and for the node tables.
    pub staging: PathBuf,
    /// How many bytes of files that are being written may be there; any number, if none.
    #[serde(default)]
    pub staging_size: Option<u64>,
    /// What to answer for.
    pub mounts: Vec<MountSpec>,
}

/// A bounded folder of blocks that were read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Where; shared between processes.
    pub folder: PathBuf,
    /// How many bytes of disk it may take.
    #[serde(default = "default_cache_size")]
    pub size: u64,
}

fn default_cache_size() -> u64 {
    4 << 30
}

/// One mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountSpec {
    /// Names the mount in events and in the node table; letters, digits, `-` and `_`.
    pub id: String,
    /// Which store.
    pub source: Source,
    /// The part of the store that is shown, as a folder; empty for all of it.
    #[serde(default)]
    pub prefix: String,
    /// Whether changes are refused; they are unless said otherwise.
    #[serde(default = "yes")]
    pub read_only: bool,
    /// Who owns everything.
    #[serde(default)]
    pub uid: u32,
    /// The group of everything.
    #[serde(default)]
    pub gid: u32,
    /// The mode of every file.
    #[serde(default = "default_file_mode")]
    pub file_mode: u32,
    /// The mode of every folder.
    #[serde(default = "default_folder_mode")]
    pub folder_mode: u32,
    /// How long the store may make no progress before a call fails.
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
    /// How long what the store said about names is believed.
    #[serde(default = "default_ttl")]
    pub metadata_ttl_ms: u64,
    /// Certificates to trust instead of the system's, in PEM.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Whether another program answered for this descriptor before: no handshake comes then.
    #[serde(default)]
    pub resumed: bool,
}

fn yes() -> bool {
    true
}

fn default_file_mode() -> u32 {
    0o644
}

fn default_folder_mode() -> u32 {
    0o755
}

fn default_timeout() -> u64 {
    15_000
}

fn default_ttl() -> u64 {
    5_000
}

impl MountSpec {
    /// A read-only mount of all of `source`.
    #[must_use]
    pub fn new(id: &str, source: Source) -> Self {
        Self {
            id: id.to_owned(),
            source,
            prefix: String::new(),
            read_only: true,
            uid: 0,
            gid: 0,
            file_mode: default_file_mode(),
            folder_mode: default_folder_mode(),
            timeout_ms: default_timeout(),
            metadata_ttl_ms: default_ttl(),
            ca_file: None,
            resumed: false,
        }
    }

    /// The prefix of every key, which ends in a slash or is empty.
    #[must_use]
    pub fn root(&self) -> String {
        let inner = self.prefix.trim_matches('/');
        if inner.is_empty() { String::new() } else { format!("{inner}/") }
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(crate) fn metadata_ttl(&self) -> Duration {
        Duration::from_millis(self.metadata_ttl_ms)
    }

    /// What is wrong with it, if anything.
    pub(crate) fn fault(&self) -> Option<String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.id.is_empty() || self.id.len() > 64 || !self.id.chars().all(plain) {
            return Some(format!("the mount's id {:?} is not a plain name", self.id));
        }
        let root = self.root();
        let odd =
            |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
        if !root.is_empty() && root.trim_end_matches('/').split('/').any(odd) {
            return Some(format!("the prefix {:?} is not a folder's path", self.prefix));
        }
        // They are parts of addresses, which would be others.
        let is_odd = |name: &&str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.$".contains(c);
            matches!(*name, "" | "." | "..") || !name.chars().all(plain)
        };
        let odd = self.source.names().into_iter().find(is_odd);
        odd.map(|name| format!("{name:?} is no name of a bucket or an account"))
    }
}

/// A store, and who we are there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// Amazon S3 and everything that speaks its interface.
    S3 {
        /// The bucket.
        bucket: String,
        /// The region requests are signed for.
        #[serde(default)]
        region: Option<String>,
        /// Another server than Amazon's.
        #[serde(default)]
        endpoint: Option<String>,
        /// Who we are; nobody in particular without.
        #[serde(default)]
        keys: Option<Keys>,
        /// Whether the bucket is the first part of the path; so by default with an `endpoint`.
        #[serde(default)]
        path_style: Option<bool>,
    },
    /// Cloudflare R2.
    R2 {
        /// The bucket.
        bucket: String,
        /// The account that the endpoint is made of.
        account_id: String,
        /// An endpoint instead of the account's.
        #[serde(default)]
        custom_domain: Option<String>,
        /// Who we are.
        #[serde(default)]
        keys: Option<Keys>,
    },
    /// Google Cloud Storage.
    Gcs {
        /// The bucket.
        bucket: String,
        /// Another server than Google's.
        #[serde(default)]
        endpoint: Option<String>,
        /// The region, for requests signed with HMAC keys.
        #[serde(default)]
        region: Option<String>,
        /// Who we are.
        #[serde(default)]
        auth: GcsAuth,
    },
    /// Azure Blob storage.
    AzureBlob {
        /// The storage account.
        account: String,
        /// The container.
        container: String,
        /// Another server than Azure's.
        #[serde(default)]
        endpoint: Option<String>,
        /// Who we are.
        #[serde(default)]
        auth: AzureAuth,
    },
}

impl Source {
    /// What of it becomes part of addresses.
    fn names(&self) -> Vec<&str> {
        match self {
            Self::S3 { bucket, .. } | Self::Gcs { bucket, .. } => vec![bucket.as_str()],
            Self::R2 { bucket, account_id, .. } => vec![bucket.as_str(), account_id.as_str()],
            Self::AzureBlob { account, container, .. } => {
                vec![account.as_str(), container.as_str()]
            }
        }
    }
}

/// A pair of keys, and the token that goes with temporary ones.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// The public half.
    pub access_key_id: String,
    /// The secret half.
    pub secret_access_key: Secret,
    /// Of temporary keys.
    #[serde(default)]
    pub session_token: Option<Secret>,
}

/// How Google knows us.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum GcsAuth {
    /// Not at all.
    #[default]
    Anonymous,
    /// By keys for the interface that is S3's.
    Hmac {
        /// The keys.
        keys: Keys,
    },
    /// By a token that somebody else renews.
    AccessToken {
        /// The token.
        token: Secret,
    },
    /// By the key file of a service account.
    ServiceAccount {
        /// Its JSON text.
        key: Secret,
    },
}

/// How Azure knows us.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum AzureAuth {
    /// Not at all.
    #[default]
    Anonymous,
    /// By the account's key.
    Key {
        /// The key, in base64.
        key: Secret,
    },
    /// By the identity of the machine this runs on.
    ManagedIdentity {
        /// Which of its identities.
        client_id: String,
    },
}

/// Text that no log may hold.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes the text over.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(prefix: &str) -> MountSpec {
        let source = Source::AzureBlob {
            account: "a".into(),
            container: "c".into(),
            endpoint: None,
            auth: AzureAuth::Key { key: Secret::new("hidden") },
        };
        MountSpec { prefix: prefix.into(), ..MountSpec::new("m", source) }
    }

    #[test]
    fn makes_a_folder_of_every_prefix() {
        for (prefix, root) in [("", ""), ("/", ""), ("a", "a/"), ("/a/b/", "a/b/")] {
            assert_eq!(spec(prefix).root(), root);
        }
    }

    #[test]
    fn refuses_prefixes_that_are_no_path() {
        for prefix in ["a/../b", "..", "a//b", "a\0"] {
            assert!(spec(prefix).fault().is_some(), "{prefix}");
        }
        assert_eq!(spec("a/b c").fault(), None);
    }

    #[test]
    fn refuses_names_that_would_be_other_addresses() {
        let named = |name: &str| {
            let mut spec = spec("");
            if let Source::AzureBlob { container, .. } = &mut spec.source {
                *container = name.into();
            }
            spec.fault()
        };
        for name in ["", ".", "..", "a/b", "example.org/", "b?x", "b#", "user@b", "b:80", "b\n"] {
            assert!(named(name).is_some(), "{name:?}");
        }
        for name in ["data", "my.bucket-1", "a_b", "$web"] {
            assert_eq!(named(name), None);
        }
    }

    #[test]
    fn prints_no_secret() {
        assert!(!format!("{:?}", spec("")).contains("hidden"));
    }
}
