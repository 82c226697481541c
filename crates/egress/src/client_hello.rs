//! The first message of TLS, the client's hello: parsed, and not answered.

use std::io;

use rustls::server::Acceptor;

/// The longest first message.
pub(crate) const MAX_HELLO: usize = 16 << 10;

/// What the bytes of a connection so far say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientHello {
    /// More of them must come.
    Partial,
    /// They are no such message.
    Malformed,
    /// It is whole, and names this host, in lower case; none, if it leaves the name out.
    Whole(Option<String>),
}

/// Looks at the bytes of a connection so far.
#[must_use]
pub fn peek(bytes: &[u8]) -> ClientHello {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    loop {
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                return ClientHello::Whole(hello.server_name().map(str::to_ascii_lowercase));
            }
            Ok(None) => {}
            Err(_) => return ClientHello::Malformed,
        }
        if rest.is_empty() {
            return if bytes.len() >= MAX_HELLO {
                ClientHello::Malformed
            } else {
                ClientHello::Partial
            };
        }
        match acceptor.read_tls(&mut rest) {
            Ok(0) => return ClientHello::Partial,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return ClientHello::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = name.to_owned().try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn finds_the_name_in_whole_messages_alone() {
        let bytes = hello("www.example.org");
        assert_eq!(peek(&bytes), ClientHello::Whole(Some("www.example.org".to_owned())));
        for length in 0..bytes.len() {
            assert_eq!(peek(&bytes[..length]), ClientHello::Partial, "{length}");
        }
        assert_eq!(peek(&hello("192.0.2.1")), ClientHello::Whole(None));
        assert_eq!(peek(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"), ClientHello::Malformed);
        assert_eq!(peek(&[0x16; MAX_HELLO]), ClientHello::Malformed);
    }
}
