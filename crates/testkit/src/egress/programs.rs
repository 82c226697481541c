//! Programs as users have them, which nobody told anything.

use std::io::{Read, Write};
use std::net::TcpListener;

use bastide::Session;

use super::{policy, session};
use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![curl_gets_what_is_allowed, python_gets_what_is_allowed];

/// A server of HTTP that answers everything with the same page.
fn page() -> Result<u16, TrialError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            // Requests here are short, and come at once.
            drop(stream.read(&mut request));
            drop(stream.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n",
            ));
        }
    });
    Ok(port)
}

async fn with_page(context: &Context) -> Result<(Session, u16), TrialError> {
    let port = page()?;
    let text = format!(
        "rules:\n- allow: page.test\n  ports: [{port}]\n  protocol: http\nhosts: {{page.test: 127.0.0.1}}\n"
    );
    Ok((session(context, policy(&text)?).await?, port))
}

async fn has(session: &Session, program: &str) -> Result<bool, TrialError> {
    let found =
        say(session, &format!("command -v {program} > /dev/null && echo yes; true")).await?;
    Ok(found == "yes\n")
}

async fn curl_gets_what_is_allowed(context: Context) -> Outcome {
    let (session, port) = with_page(&context).await?;
    if !has(&session, "curl").await? {
        return Err(skip("there is no curl"));
    }
    let got = say(&session, &format!("curl -sS --max-time 30 http://page.test:{port}/")).await?;
    assert_eq!(got, "page\n");
    // The answer to what is denied says so.
    let said = say(&session, "curl -sS --max-time 30 http://203.0.113.9/ 2>&1; true").await?;
    assert!(said.contains("\"no_rule\"") && said.contains("403"), "{said}");
    Ok(session.delete().await?)
}

async fn python_gets_what_is_allowed(context: Context) -> Outcome {
    let (session, port) = with_page(&context).await?;
    if !has(&session, "python3").await? {
        return Err(skip("there is no python3"));
    }
    let script = format!(
        "import urllib.request; print(urllib.request.urlopen('http://page.test:{port}/', timeout=30).read())"
    );
    assert_eq!(say(&session, &format!("python3 -c \"{script}\"")).await?, "b'page\\n'\n");
    Ok(session.delete().await?)
}
