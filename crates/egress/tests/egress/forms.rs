//! Requests are decided in the form they are sent in.

use crate::support::{ProxyFixture, get, http, status, talk};

fn policy(port: u16, http: &str) -> String {
    format!(
        "rules:\n- allow: a.org\n  ports: [{port}]\n  protocol: http\n  http: [{http}]\nhosts: {{a.org: 127.0.0.2}}\n"
    )
}

#[tokio::test]
async fn headers_of_the_connection_decide_nothing() {
    let port = http();
    let world = ProxyFixture::new(&policy(port, "{headers: {x-team: blue}}"), &[port]).await;
    let ask = async |headers: &str| {
        talk(world.dial("a.org", port).await, &get("a.org", "/", headers)).await
    };
    assert_eq!(status(&ask("X-Team: blue\r\n").await), "200");
    assert_eq!(status(&ask("").await), "403");
    // What is named there is dropped on the way, so nothing was decided by it.
    for named in ["X-Team", "keep-alive, x-team", "close,X-TEAM ,x"] {
        let said = ask(&format!("Connection: {named}\r\nX-Team: blue\r\n")).await;
        assert_eq!(status(&said), "403", "{named}: {said}");
    }
    for hop in ["te", "keep-alive", "proxy-authorization", "proxy-connection"] {
        let text = policy(port, &format!("{{headers: {{{hop}: '*'}}}}"));
        let response = world.ask(crate::support::set(&text)).await;
        assert_eq!(response, bastide_proto::egress::EgressResponse::Done);
        world.changed().await;
        let said = ask(&format!("{hop}: blue\r\n")).await;
        assert_eq!(status(&said), "403", "{hop}: {said}");
    }
}

#[tokio::test]
async fn what_was_decided_arrives() {
    let port = http();
    let world = ProxyFixture::new(&policy(port, "{headers: {x-team: blue}}"), &[port]).await;
    let headers = "X-Team: blue\r\nX-Other: 1\r\nConnection: x-other\r\n";
    let said = talk(world.dial("a.org", port).await, &get("a.org", "/", headers)).await;
    assert!(said.contains("x-team: blue") && !said.contains("x-other"), "{said}");
}

#[tokio::test]
async fn cookies_are_looked_at_together() {
    let port = http();
    let world = ProxyFixture::new(&policy(port, "{headers: {cookie: 'a=1'}}"), &[port]).await;
    let said = talk(world.dial("a.org", port).await, &get("a.org", "/", "Cookie: a=1\r\n")).await;
    assert_eq!(status(&said), "200");
    let two = "Cookie: a=1\r\nCookie: a=1\r\n";
    let said = talk(world.dial("a.org", port).await, &get("a.org", "/", two)).await;
    assert_eq!(status(&said), "403", "{said}");
}
