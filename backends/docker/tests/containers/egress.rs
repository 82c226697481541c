//! Networks with a policy in containers: who can have one, what it adds to the container, and what is left of it.

use std::sync::Arc;

use bastide::model::Manifest;
use bastide::model::document::Format;
use bastide::model::policy::Policy;
use bastide::{Client, CreateOptions, ErrorKind, Session};
use bastide_docker::{DockerBackend, EngineAddress};
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, parent, say, skip};
use bastide_testkit::trials;

use super::setting::{Setting, base, container};

pub(crate) const TRIALS: &[Trial] = trials![
    refuses_a_policy_where_the_network_cannot_be_joined,
    adds_no_capability_for_a_network_with_a_policy,
    has_the_image_trust_the_sessions_authority_alone,
    leaves_nothing_of_a_network_with_a_policy,
];

/// A policy by which TLS of one host is read.
fn reading() -> Result<Policy, TrialError> {
    let text = "rules:\n- allow: read.test\n  http: [{methods: [GET]}]\n";
    Ok(Policy::parse("policy.yaml", text, Format::Yaml)?)
}

/// A session with that policy, which outlives its client.
async fn session(setting: &Setting) -> Result<(Client, Session), TrialError> {
    if !rustix::process::geteuid().is_root() {
        return Err(skip("joining a container's network takes root"));
    }
    let client = setting.client(base())?;
    let options = CreateOptions::default().policy(reading()?).detached();
    let session = client.create(&Manifest::default(), options).await?;
    Ok((client, session))
}

async fn refuses_a_policy_where_the_network_cannot_be_joined(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let here = EngineAddress::parse(&setting.host, None)?;
    let elsewhere = EngineAddress::parse("tcp://127.0.0.1:9", None)?;
    for (address, options, said) in [
        (&elsewhere, base(), "its daemon is elsewhere"),
        (&here, base().runtime("runsc"), "`runsc` is a kernel of its own"),
        (&here, base().only_user("1000"), "one user only"),
    ] {
        let backend = DockerBackend::new(setting.home.path(), address.clone(), options)?;
        let client = Client::new(Arc::new(backend));
        let options = CreateOptions::default().policy(reading()?);
        let refused = client.create(&Manifest::default(), options).await;
        let error = refused.err().ok_or("it was not refused")?;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(said) && error.hint().is_some(), "{error}");
        assert!(client.list().await?.is_empty());
    }
    Ok(())
}

/// What the engine was asked for, and what the kernel says of the first process and of commands.
async fn adds_no_capability_for_a_network_with_a_policy(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let (client, with) = session(&setting).await?;
    let without = setting.session(base()).await?;
    let format =
        "{{json .HostConfig.CapAdd}} {{json .HostConfig.SecurityOpt}} {{json .HostConfig.Devices}}";
    let asked =
        |session: &Session| setting.docker(&["inspect", "--format", format, &container(session)]);
    assert_eq!(asked(&with)?, asked(&without)?);
    let mode = ["inspect", "--format", "{{.HostConfig.NetworkMode}}", &container(&with)];
    assert_eq!(setting.docker(&mode)?, "none\n");
    let line = "grep -hE '^(Cap|NoNewPrivs|Seccomp)' /proc/1/status /proc/self/status";
    assert_eq!(say(&with, line).await?, say(&without, line).await?);
    without.delete().await?;
    client.delete(with.id()).await?;
    Ok(())
}

async fn has_the_image_trust_the_sessions_authority_alone(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let (client, session) = session(&setting).await?;
    let id = session.id().clone();
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    let variable = say(&session, "echo $SSL_CERT_FILE; tail -n 1 $SSL_CERT_FILE").await?;
    assert_eq!(variable, "/.bastide/trust/trusted.pem\n-----END CERTIFICATE-----\n");
    let refused = "(echo x >> /.bastide/trust/trusted.pem || echo refused) 2>/dev/null";
    assert_eq!(say(&session, refused).await?, "refused\n");
    let prepare = format!(
        "rm -rf /etc/ssl; mkdir -p /etc/ssl/certs; echo own > {bundle}; ln -s /etc/passwd /etc/ssl/cert.pem; cat /etc/passwd"
    );
    let before = say(&session, &prepare).await?;
    drop(session);
    for _ in 0..2 {
        client.stop(&id).await?;
        let session = client.resume(&id).await?;
        let said = say(&session, &format!("head -n 1 {bundle}; grep -c BEGIN {bundle}")).await?;
        assert_eq!(said, "own\n1\n");
        let both = "[ \"$(grep -v '^#' /etc/ssl/certs/ca-certificates.crt)\" = \"$(cat $SSL_CERT_FILE)\" ] && echo same";
        assert_eq!(say(&session, both).await?, "same\n");
        assert_eq!(say(&session, "cat /etc/passwd").await?, before);
    }
    client.delete(&id).await?;
    Ok(())
}

async fn leaves_nothing_of_a_network_with_a_policy(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let (client, session) = session(&setting).await?;
    let id = session.id().clone();
    let proxy = client.egress_status(&id).await?.pid;
    let warden = parent(proxy)?;
    let children = || -> Result<Vec<u32>, TrialError> {
        let all = std::fs::read_to_string(format!("/proc/{warden}/task/{warden}/children"))?;
        Ok(all.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    };
    let helpers = children()?;
    assert_eq!(helpers.len(), 2, "the proxy, and the process that makes sockets");
    drop(session);
    client.stop(&id).await?;
    let lives = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(!helpers.iter().any(lives) && !lives(&warden));
    client.resume(&id).await?;
    let folder = setting.home.path().join("sessions").join(id.as_str());
    client.delete(&id).await?;
    assert!(!folder.exists());
    let named = format!("name=bastide-{id}");
    assert_eq!(setting.docker(&["ps", "--all", "--quiet", "--filter", &named])?, "");
    Ok(())
}
