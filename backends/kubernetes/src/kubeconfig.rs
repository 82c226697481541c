//! Files in the form of `kubectl`, read by the parser that manifests are read by: the one of the cluster's client would
//! be a second in the program.

use std::fs;
use std::io;
use std::path::Path;

use bastide::model::document::{Document, Format};
use bastide::{Error, ErrorKind, Result};
use kube::config::{AuthInfo, Cluster, Kubeconfig};

use crate::access::lost;

/// Reads a file. Those it names beside itself are named from the top afterwards.
pub(crate) fn read(path: &Path) -> Result<Kubeconfig> {
    let text = fs::read(path).and_then(|bytes| {
        String::from_utf8(bytes)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text"))
    });
    let text = text.map_err(|error| {
        let message = format!("cannot read the kubeconfig {}: {error}", path.display());
        lost(message).with_hint("name another with `ClusterAccess::new`")
    })?;
    let mut config = parse(&text).map_err(|_| {
        // The reason would quote the line, and that may be a credential.
        lost(format!("{} is no kubeconfig", path.display()))
            .with_hint("`kubectl config view --kubeconfig FILE` says where it is damaged")
    })?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster_from_top(cluster, folder);
    }
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        user_from_top(user, folder);
    }
    Ok(config)
}

/// What a text says; of several documents the first counts most.
fn parse(text: &str) -> Result<Kubeconfig> {
    let bad =
        |error: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidInput, error.to_string());
    let mut all = Kubeconfig::default();
    for document in documents(text.trim_start_matches('\u{feff}')) {
        let document = Document::parse("kubeconfig", &document, Format::Yaml)?;
        if document.value().is_null() {
            continue;
        }
        let config = serde_json::from_value(document.value().clone());
        let config = config.map_err(|error| bad(&error))?;
        all = all.merge(config).map_err(|error| bad(&error))?;
    }
    Ok(all)
}

/// The documents of a text: a line that begins with three dashes ends one.
fn documents(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.split_inclusive('\n') {
        match line.strip_prefix("---") {
            Some(rest) if rest.trim().is_empty() => all.push(String::new()),
            _ => all.last_mut().into_iter().for_each(|last| last.push_str(line)),
        }
    }
    all
}

fn cluster_from_top(cluster: &mut Cluster, folder: &Path) {
    from_top(&mut cluster.certificate_authority, folder);
}

fn user_from_top(user: &mut AuthInfo, folder: &Path) {
    for file in [&mut user.client_certificate, &mut user.client_key, &mut user.token_file] {
        from_top(file, folder);
    }
    // A name alone is looked for on the search path.
    if let Some(exec) = &mut user.exec
        && exec.command.as_ref().is_some_and(|command| command.contains('/'))
    {
        from_top(&mut exec.command, folder);
    }
}

fn from_top(file: &mut Option<String>, folder: &Path) {
    // What is no text here is not found, and said to be missing under the name it has there.
    if let Some(name) = file
        && let Some(full) = folder.join(&*name).to_str()
    {
        *name = full.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
apiVersion: v1
kind: Config
current-context: one
clusters:
- name: c
  cluster: {server: 'https://127.0.0.1:1', certificate-authority: pki/ca.pem, insecure-skip-tls-verify: true}
contexts:
- name: one
  context: {cluster: c, user: u, namespace: team}
users:
- name: u
  user:
    token: abc
    client-key: /whole/key.pem
    exec: {apiVersion: client.authentication.k8s.io/v1, command: ./sign-in, args: [a], interactiveMode: Never}
---
current-context: two
contexts:
- name: two
  context: {cluster: c, user: u}
";

    #[test]
    fn reads_what_files_say_and_names_others_from_the_top() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(&path, FILE).unwrap();
        let config = read(&path).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("one"));
        let names: Vec<_> = config.contexts.iter().map(|named| named.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.insecure_skip_tls_verify, Some(true));
        let within = |name: &str| Some(folder.path().join(name).display().to_string());
        assert_eq!(cluster.certificate_authority, within("pki/ca.pem"));
        let user = config.auth_infos[0].auth_info.as_ref().unwrap();
        assert!(user.token.is_some());
        assert_eq!(user.client_key.as_deref(), Some("/whole/key.pem"));
        assert_eq!(user.exec.as_ref().unwrap().command, within("./sign-in"));
    }

    #[test]
    fn takes_a_file_that_says_nothing_and_quotes_none_that_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        for empty in ["", "---\n", "# nothing\n"] {
            fs::write(&path, empty).unwrap();
            assert!(read(&path).unwrap().contexts.is_empty(), "{empty:?}");
        }
        for damaged in
            ["users: s3cr3t", "users: [{name: u, user: {token: [s3cr3t]}}]", "a: 's3cr3t"]
        {
            fs::write(&path, damaged).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.message().ends_with("is no kubeconfig"), "{error}");
            assert!(!format!("{error:?}").contains("s3cr3t"), "{error:?}");
        }
    }
}
