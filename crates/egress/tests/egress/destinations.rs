//! Where names lead.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use crate::support::{OUTSIDE, ProxyFixture, get, http, serve, status, talk};

/// A server of DNS that gives one address after the other to whoever asks for any name; its place, and how often it
/// was asked for addresses of IPv4.
async fn dns(addresses: Vec<IpAddr>) -> (String, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let place = socket.local_addr().unwrap().to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let mut message = Message::from_vec(&buffer[..length]).unwrap();
            let query = message.queries[0].clone();
            let turn = match query.query_type() {
                RecordType::A => count.fetch_add(1, Ordering::SeqCst),
                _ => count.load(Ordering::SeqCst),
            };
            let address = addresses[turn.min(addresses.len() - 1)];
            message.metadata.message_type = MessageType::Response;
            let data = match (address, query.query_type()) {
                (IpAddr::V4(v4), RecordType::A) => Some(RData::A(A(v4))),
                (IpAddr::V6(v6), RecordType::AAAA) => Some(RData::AAAA(AAAA(v6))),
                _ => None,
            };
            if let Some(data) = data {
                message.add_answer(Record::from_rdata(query.name().clone(), 0, data));
            }
            socket.send_to(&message.to_vec().unwrap(), from).await.unwrap();
        }
    });
    (place, asked)
}

fn policy(port: u16, dns: &str, more: &str) -> String {
    format!(
        "rules:\n- allow: a.org\n  ports: [{port}]\n  protocol: http\n{more}upstream: {{dns: '{dns}'}}\n"
    )
}

/// T18.
#[tokio::test]
async fn is_never_a_private_place_by_itself() {
    let port = http();
    for address in [
        "127.0.0.2",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.2",
        "64:ff9b::7f00:2",
        "0.0.0.0",
    ] {
        let (dns, _) = dns(vec![address.parse().unwrap()]).await;
        let world = ProxyFixture::new(&policy(port, &dns, ""), &[port]).await;
        let said = talk(world.dial("a.org", port).await, &get("a.org", "/", "")).await;
        assert_eq!(status(&said), "403", "{address}: {said}");
        assert!(said.contains("\"why\":\"private\""), "{address}: {said}");
    }
}

#[tokio::test]
async fn is_looked_at_every_time() {
    let port = http();
    let turns = vec![IpAddr::V4(OUTSIDE), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1))];
    let (dns, asked) = dns(turns).await;
    // Only the one address is named.
    let allowed = policy(port, &dns, "").replace("allow: a.org", "allow: [a.org, 127.0.0.2]");
    let world = ProxyFixture::new(&allowed, &[port]).await;
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let said = talk(world.dial("a.org", port).await, &get("a.org", "/", "")).await;
    assert_eq!(status(&said), "200", "{said}");
    // Nothing was asked before a connection was made.
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let said = talk(world.dial("a.org", port).await, &get("a.org", "/", "")).await;
    assert_eq!(status(&said), "403", "{said}");
    world.denied("private").await;
}

#[tokio::test]
async fn is_the_business_of_a_proxy_where_there_is_one() {
    let port = http();
    let proxy = serve(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        if !head.starts_with("CONNECT a.org:") {
            stream.write_all(b"HTTP/1.1 407 no\r\n\r\n").await.unwrap();
            return;
        }
        let port: u16 = head.split([':', ' ']).nth(2).unwrap().parse().unwrap();
        let mut outside = tokio::net::TcpStream::connect((OUTSIDE, port)).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 Connected\r\nx: y\r\n\r\n").await.unwrap();
        drop(tokio::io::copy_bidirectional(&mut stream, &mut outside).await);
    });
    let policy = format!(
        "rules:\n- allow: [a.org, b.org]\n  ports: [{port}]\n  protocol: http\nupstream: {{proxy: 'http://127.0.0.2:{proxy}'}}\n"
    );
    let world = ProxyFixture::new(&policy, &[port]).await;
    let said = talk(world.dial("a.org", port).await, &get("a.org", "/by", "")).await;
    assert!(said.contains("GET /by HTTP/1.1"), "{said}");
    let said = talk(world.dial("b.org", port).await, &get("b.org", "/", "")).await;
    assert!(status(&said) == "502" && said.contains("407 no"), "{said}");
}
