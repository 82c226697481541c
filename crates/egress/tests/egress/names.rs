//! Questions about names.

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsCode;
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{ProxyFixture, soon};

const POLICY: &str = "rules:\n- deny: no.a.org\n  reason: ask Ops\n- allow: ['**.a.org', a.org]\n";

#[tokio::test]
async fn have_one_address_each_and_nothing_else() {
    let world = ProxyFixture::new(POLICY, &[]).await;
    let address = world.address("x.a.org").await;
    assert_eq!(world.address("X.A.org").await, address);
    assert_ne!(world.address("y.a.org").await, address);
    for kind in
        [RecordType::AAAA, RecordType::TXT, RecordType::HTTPS, RecordType::NULL, RecordType::MX]
    {
        let reply = world.query("x.a.org.", kind).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
        assert!(reply.answers.is_empty(), "{kind}");
    }
    let [a, b, c, d] = address.octets();
    let reply = world.query(&format!("{d}.{c}.{b}.{a}.in-addr.arpa."), RecordType::PTR).await;
    assert!(matches!(&reply.answers[0].data, RData::PTR(name) if name.0.to_ascii() == "x.a.org."));
    let reply = world.query("8.8.8.8.in-addr.arpa.", RecordType::PTR).await;
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn do_not_exist_where_no_rule_could_allow_them() {
    let world = ProxyFixture::new(POLICY, &[]).await;
    for (name, reason) in
        [("evil.org.", "no rule"), ("no.a.org.", "ask Ops"), ("127.1.", "no rule")]
    {
        let reply = world.query(name, RecordType::A).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{name}");
        let edns = reply.edns.unwrap();
        let option = edns.option(EdnsCode::from(15)).unwrap();
        let bytes = Vec::<u8>::try_from(option).unwrap();
        assert_eq!(&bytes[..2], [0, 15]);
        assert!(String::from_utf8_lossy(&bytes[2..]).contains(reason), "{name}");
    }
    let note = world.denied("no_rule").await;
    assert_eq!((note["host"].as_str(), note["protocol"].as_str()), (Some("evil.org"), Some("dns")));
}

#[tokio::test]
async fn are_asked_for_in_whole_messages() {
    let world = ProxyFixture::new(POLICY, &[]).await;
    let mut looped = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    looped.extend([0xc0, 12, 0, 1, 0, 1]);
    let reply = Message::from_vec(&world.exchange(&looped).await).unwrap();
    assert_eq!((reply.metadata.id, reply.metadata.response_code), (7, ResponseCode::FormErr));
    let mut two = Message::query();
    two.add_query(Query::query(Name::from_ascii("a.org.").unwrap(), RecordType::A));
    two.add_query(Query::query(Name::from_ascii("b.org.").unwrap(), RecordType::A));
    let reply = Message::from_vec(&world.exchange(&two.to_vec().unwrap()).await).unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::FormErr);
    let mut update = Message::query();
    update.metadata.op_code = OpCode::Notify;
    let reply = Message::from_vec(&world.exchange(&update.to_vec().unwrap()).await).unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::NotImp);
}

#[tokio::test]
async fn are_answered_over_connections_within_bounds() {
    let world = ProxyFixture::new(POLICY, &[]).await;
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii("x.a.org.").unwrap(), RecordType::A));
    let bytes = question.to_vec().unwrap();
    let mut stream = world.dns_stream().await;
    for _ in 0..2 {
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], &bytes].concat()).await.unwrap();
        let length = soon(stream.read_u16()).await.unwrap();
        let mut reply = vec![0; usize::from(length)];
        soon(stream.read_exact(&mut reply)).await.unwrap();
        assert_eq!(Message::from_vec(&reply).unwrap().answers.len(), 1);
    }
    let mut stream = world.dns_stream().await;
    stream.write_all(&[0xff, 0xff]).await.unwrap();
    // It is closed before the rest has come.
    assert_eq!(soon(stream.read(&mut [0; 16])).await.unwrap_or(0), 0);
}
