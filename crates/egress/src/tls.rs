//! TLS on both sides: the session's authority for what is read, and verification of the outside.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bastide_model::policy::{Host, HostPattern};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::crypto::CryptoProvider;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// A day, by which certificates outlast the session and begin before it.
const DAY: i64 = 86_400;

/// No certificate lasts longer.
const MAX_LIFE: i64 = 397 * DAY;

/// How many certificates are kept.
const MAX_LEAVES: usize = 1024;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// An authority on its way from one program of a session to the next.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuthorityFile {
    /// The authority's name: another one for every certificate, so that none is taken for another.
    name: String,
    session: String,
    key: Vec<u8>,
    certificate: Vec<u8>,
    not_after: i64,
    hosts: Vec<String>,
}

/// The session's authority, trusted inside alone. Its key is in this process.
pub(crate) struct Authority {
    file: AuthorityFile,
    issuer: Issuer<'static, KeyPair>,
    leaf_key: KeyPair,
    leaves: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl Authority {
    /// Makes one for these hosts and no others.
    pub(crate) fn make(session: &str, hosts: &[HostPattern], lease: u64) -> Result<Self, String> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| e.to_string())?;
        Self::certify(session, hosts, key, not_after(lease))
    }

    /// The same one for other hosts.
    pub(crate) fn for_hosts(&self, hosts: &[HostPattern]) -> Result<Self, String> {
        let key = read_key(&self.file.key)?;
        Self::certify(&self.file.session, hosts, key, self.file.not_after)
    }

    fn certify(
        session: &str,
        hosts: &[HostPattern],
        key: KeyPair,
        not_after: i64,
    ) -> Result<Self, String> {
        let name = name_of(session, hosts, &key);
        let mut params = authority_params(&name, not_after)?;
        params.name_constraints = Some(constraints(hosts));
        let certificate = params.self_signed(&key).map_err(|error| error.to_string())?;
        let file = AuthorityFile {
            name,
            session: session.to_owned(),
            key: key.serialize_der(),
            certificate: certificate.der().to_vec(),
            not_after,
            hosts: hosts.iter().map(ToString::to_string).collect(),
        };
        Self::new(file, params, key)
    }

    /// One that an earlier program of the session made.
    pub(crate) fn restore(file: AuthorityFile) -> Result<Self, String> {
        let key = read_key(&file.key)?;
        let params = authority_params(&file.name, file.not_after)?;
        Self::new(file, params, key)
    }

    fn new(file: AuthorityFile, params: CertificateParams, key: KeyPair) -> Result<Self, String> {
        let leaf_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| e.to_string())?;
        Ok(Self { file, issuer: Issuer::new(params, key), leaf_key, leaves: Mutex::default() })
    }

    pub(crate) fn file(&self) -> &AuthorityFile {
        &self.file
    }

    /// Whether it is for these hosts.
    pub(crate) fn is_for(&self, hosts: &[HostPattern]) -> bool {
        self.file.hosts.len() == hosts.len()
            && self.file.hosts.iter().zip(hosts).all(|(own, host)| *own == host.to_string())
    }

    pub(crate) fn certificate_pem(&self) -> String {
        let text = STANDARD.encode(&self.file.certificate);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }

    /// How the program inside is answered in the name of a host.
    pub(crate) fn server(&self, host: &Host) -> Result<Arc<ServerConfig>, String> {
        let name = host.to_string();
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = leaves.get(&name) {
            return Ok(Arc::clone(found));
        }
        let made = Arc::new(self.make_server(host)?);
        if leaves.len() >= MAX_LEAVES {
            leaves.clear();
        }
        leaves.insert(name, Arc::clone(&made));
        Ok(made)
    }

    fn make_server(&self, host: &Host) -> Result<ServerConfig, String> {
        let mut params = CertificateParams::default();
        let name = match host {
            Host::Name(name) => {
                SanType::DnsName(name.as_str().try_into().map_err(|e: rcgen::Error| e.to_string())?)
            }
            Host::Address(address) => SanType::IpAddress(*address),
        };
        params.subject_alt_names = vec![name];
        params.distinguished_name = DistinguishedName::new();
        (params.not_before, params.not_after) =
            (moment(now() - DAY)?, moment(self.file.not_after)?);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf =
            params.signed_by(&self.leaf_key, &self.issuer).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }
}

fn read_key(der: &[u8]) -> Result<KeyPair, String> {
    let der = PrivatePkcs8KeyDer::from(der);
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).map_err(|e| e.to_string())
}

/// Programs look for authorities by their names, and an earlier one of this session may still be among them.
fn name_of(session: &str, hosts: &[HostPattern], key: &KeyPair) -> String {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    digest.update(key.public_key_raw());
    for host in hosts {
        digest.update(format!("{host}\n").as_bytes());
    }
    let digest = digest.finish();
    let short = hex::encode(digest.as_ref().get(..4).unwrap_or_default());
    format!("Bastide session {session} {short}")
}

fn authority_params(common_name: &str, not_after: i64) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    (params.not_before, params.not_after) = (moment(now() - DAY)?, moment(not_after)?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// The hosts as names that certificates of the authority may have, and none besides.
fn constraints(hosts: &[HostPattern]) -> NameConstraints {
    let mut permitted = Vec::new();
    let mut excluded = Vec::new();
    for pattern in hosts {
        match pattern {
            HostPattern::Name(name) | HostPattern::Child(name) | HostPattern::Below(name) => {
                permitted.push(GeneralSubtree::DnsName(name.clone()));
            }
            HostPattern::Addresses(network) => {
                let text = network.to_string();
                let (base, prefix) = text.split_once('/').unwrap_or((&text, ""));
                if let Ok(base) = base.parse::<IpAddr>() {
                    let whole = if base.is_ipv4() { 32 } else { 128 };
                    let prefix = prefix.parse().unwrap_or(whole);
                    permitted.push(GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(
                        base, prefix,
                    )));
                }
            }
            HostPattern::AnyName | HostPattern::Preset(_) => {}
        }
    }
    if hosts.contains(&HostPattern::AnyName) {
        permitted.retain(|subtree| !matches!(subtree, GeneralSubtree::DnsName(_)));
    }
    if !hosts.iter().any(|pattern| matches!(pattern, HostPattern::Addresses(_))) {
        excluded.push(GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])));
        excluded.push(GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])));
    }
    NameConstraints { permitted_subtrees: permitted, excluded_subtrees: excluded }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX / 2)
}

fn not_after(lease: u64) -> i64 {
    let lease = i64::try_from(lease).unwrap_or(MAX_LIFE);
    now() + lease.saturating_add(DAY).min(MAX_LIFE)
}

fn moment(seconds: i64) -> Result<OffsetDateTime, String> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|error| error.to_string())
}

/// How servers outside are verified: against the machine's authorities, and those that the policy adds.
pub(crate) fn client_config(
    roots: Option<&Path>,
    more: Option<&str>,
) -> Result<Arc<ClientConfig>, String> {
    let mut store = RootCertStore::empty();
    match roots {
        Some(path) => add_file(&mut store, path)?,
        None => {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
        }
    }
    if let Some(more) = more {
        add_file(&mut store, Path::new(more))?;
    }
    if store.is_empty() {
        return Err(
            "this machine has no certificates of authorities; install ca-certificates".to_owned()
        );
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn add_file(store: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let wrong = |error: rustls_pki_types::pem::Error| {
        format!("the authorities in {} cannot be read: {error}", path.display())
    };
    let all = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let all: Vec<CertificateDer<'_>> = all.collect::<Result<_, _>>().map_err(wrong)?;
    store.add_parsable_certificates(all);
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    /// Whether somebody who trusts `authority` believes the server.
    fn is_believed(authority: &Authority, server: Arc<ServerConfig>, name: &str) -> bool {
        let mut store = RootCertStore::empty();
        store.add(CertificateDer::from(authority.file.certificate.clone())).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(store)
            .with_no_client_auth();
        let name = name.to_owned().try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut server = ServerConnection::new(server).unwrap();
        while client.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        true
    }

    #[test]
    fn is_one_authority_from_program_to_program_and_for_its_hosts_alone() {
        let hosts =
            ["a.org", "*.b.org", "10.0.0.0/8"].map(|host| HostPattern::parse(host).unwrap());
        let first = Authority::make("s", &hosts, 60).unwrap();
        let next = Authority::restore(first.file().clone()).unwrap();
        assert!(next.is_for(&hosts) && !next.is_for(&hosts[1..]));
        for (name, expected) in [
            ("a.org", true),
            ("x.b.org", true),
            ("10.1.2.3", true),
            ("c.org", false),
            ("11.0.0.1", false),
        ] {
            let server = next.server(&Host::parse(name).unwrap()).unwrap();
            assert_eq!(is_believed(&first, server, name), expected, "{name}");
        }
        let other = next.for_hosts(&[HostPattern::parse("c.org").unwrap()]).unwrap();
        let server = other.server(&Host::parse("c.org").unwrap()).unwrap();
        assert!(is_believed(&other, Arc::clone(&server), "c.org"));
        assert!(!is_believed(&first, server, "c.org"));
    }
}
