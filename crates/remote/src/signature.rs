//! Signatures of requests: AWS Signature Version 4.

use std::time::{SystemTime, UNIX_EPOCH};

use bastide::model::events::EventTime;
use ring::{digest, hmac};

/// Who we are.
pub(crate) struct Keys {
    pub(crate) access: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

/// What is signed of a request.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) body: &'a [u8],
}

impl Signed<'_> {
    /// The headers by which the server knows who asks, at the time `now` as [`timestamp`] writes it.
    pub(crate) fn headers(
        &self,
        keys: &Keys,
        region: &str,
        now: &str,
    ) -> Vec<(&'static str, String)> {
        let hash = hex::encode(digest::digest(&digest::SHA256, self.body).as_ref());
        let mut headers = vec![
            ("host", self.host.to_owned()),
            ("x-amz-content-sha256", hash.clone()),
            ("x-amz-date", now.to_owned()),
        ];
        headers.extend(keys.token.clone().map(|token| ("x-amz-security-token", token)));
        let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let Self { method, path, query, .. } = self;
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{hash}");
        let canonical = hex::encode(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let day = now.get(..8).unwrap_or(now);
        let scope = format!("{day}/{region}/s3/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{canonical}");
        let key = [day, region, "s3", "aws4_request"]
            .iter()
            .fold(format!("AWS4{}", keys.secret).into_bytes(), |key, part| mac(&key, part));
        let signature = hex::encode(mac(&key, &text));
        let credential = format!("{}/{scope}", keys.access);
        headers.push((
            "authorization",
            format!(
                "AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
            ),
        ));
        headers
    }
}

/// The time as it is signed: `20130524T000000Z`.
pub(crate) fn timestamp() -> String {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(passed.as_secs()).unwrap_or(0) * 1_000_000;
    EventTime::from_unix_micros(micros).to_string().replace(['-', ':'], "")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second example of Amazon's description of the algorithm for S3, *GET Bucket Lifecycle*.
    #[test]
    fn signs_as_amazon_does() {
        let keys = Keys {
            access: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let host = "examplebucket.s3.amazonaws.com";
        let signed = Signed { method: "GET", host, path: "/", query: "lifecycle=", body: b"" };
        let headers = signed.headers(&keys, "us-east-1", "20130524T000000Z");
        let (_, authorization) = headers.last().unwrap();
        let signature = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
        assert!(authorization.ends_with(&format!("Signature={signature}")), "{authorization}");
    }

    #[test]
    fn writes_times_as_they_are_signed() {
        let now = timestamp();
        assert!(now.len() == 16 && now.ends_with('Z') && now.as_bytes()[8] == b'T', "{now}");
    }
}
