//! Where a port of a sandbox can be reached.

use crate::{Error, Result};

/// The address at which a port of a sandbox answers.
///
/// ```
/// use bastide_model::ExposedPort;
///
/// let port = ExposedPort { host: "::1".into(), port: 443, tls: true, query: "t=1".into() };
/// assert_eq!(port.url_for("ws")?, "wss://[::1]/?t=1");
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExposedPort {
    /// A name or an address.
    pub host: String,
    /// The port to connect to, which need not be the one inside.
    pub port: i128,
    /// Whether the endpoint speaks TLS.
    pub tls: bool,
    /// What every URL carries after `?`, such as an access token; empty for nothing.
    pub query: String,
}

impl ExposedPort {
    /// The URL for `http` or `ws`, in any case of letters; TLS is the endpoint's choice, not the
    /// caller's.
    ///
    /// # Errors
    ///
    /// `ValueError` for any other scheme.
    pub fn url_for(&self, scheme: &str) -> Result<String> {
        let scheme = match (scheme.to_lowercase().as_str(), self.tls) {
            ("http", false) => "http",
            ("http", true) => "https",
            ("ws", false) => "ws",
            ("ws", true) => "wss",
            _ => return Err(Error::value_error("scheme must be either 'http' or 'ws'")),
        };
        let host = match self.host.as_str() {
            bare if bare.contains(':') && !bare.starts_with('[') => format!("[{bare}]"),
            host => host.to_owned(),
        };
        let usual = if self.tls { 443 } else { 80 };
        let port = if self.port == usual { String::new() } else { format!(":{}", self.port) };
        let query = match self.query.strip_prefix('?').unwrap_or(&self.query) {
            "" => String::new(),
            query => format!("?{query}"),
        };
        Ok(format!("{scheme}://{host}{port}/{query}"))
    }
}
