use super::*;

fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put32(&mut bytes, u32::try_from(40 + body.len()).unwrap());
    put32(&mut bytes, opcode);
    put64(&mut bytes, 7);
    put64(&mut bytes, 1);
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn reads_a_rename() {
    let mut body = Vec::new();
    put64(&mut body, 9);
    put32(&mut body, RENAME_NOREPLACE);
    put32(&mut body, 0);
    body.extend_from_slice(b"old\0new\0");
    let Some(Request { op: Op::Rename { from, folder, to, flags }, .. }) =
        parse(&request(45, &body))
    else {
        panic!("not a rename");
    };
    assert_eq!((from.as_slice(), folder, to.as_slice(), flags), (&b"old"[..], 9, &b"new"[..], 1));
}

#[test]
fn refuses_what_is_cut_short() {
    let mut body = vec![0; 16];
    put32(&mut body, 100);
    body.extend_from_slice(&[0; 20 + 99]);
    assert!(parse(&request(16, &body)).is_none());
    body.push(0);
    assert!(parse(&request(16, &body)).is_some());
    for end in 0..40 {
        assert!(parse(&request(1, b"name\0")[..end]).is_none());
    }
}

#[test]
fn answers_have_the_sizes_of_the_protocol() {
    let a = Attributes {
        node: 1,
        size: 1,
        seconds: 0,
        nanoseconds: 0,
        mode: 0,
        uid: 0,
        gid: 0,
        valid_ms: 0,
    };
    let handshake = Handshake { major: 7, max_readahead: 0, flags: 0, flags2: 0 };
    let sizes = [
        (Reply::Entry(a), 128),
        (Reply::Attributes(a), 104),
        (Reply::Opened { handle: 1, flags: 0 }, 16),
        (Reply::Created { entry: a, handle: 1 }, 144),
        (Reply::Written(1), 8),
        (Reply::StatFs, 80),
        (Reply::Init(handshake), 64),
    ];
    for (reply, size) in sizes {
        assert_eq!(body(&reply).len(), size, "{reply:?}");
    }
}
