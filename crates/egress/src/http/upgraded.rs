//! Connections that go on as something else than requests and answers.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::secrets::InjectedSecrets;

/// How long bytes are held back that may be the beginning of a secret.
const HOLD: Duration = Duration::from_millis(200);

/// Carries bytes both ways until both sides have ended. What was sent of secrets does not come back: as many other
/// characters stand in its place, so that frames stay as long as they say.
pub(super) async fn relay_upgraded<I, O>(
    mut inside: I,
    mut outside: O,
    sent: &InjectedSecrets,
) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
    O: AsyncRead + AsyncWrite + Unpin,
{
    if sent.is_empty() {
        return tokio::io::copy_bidirectional(&mut inside, &mut outside).await.map(drop);
    }
    let (mut from_inside, mut to_inside) = tokio::io::split(inside);
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    let out = async {
        tokio::io::copy(&mut from_inside, &mut to_outside).await?;
        to_outside.shutdown().await
    };
    let masked = sent.masked();
    let inward = copy_without(&masked, &mut from_outside, &mut to_inside);
    tokio::try_join!(out, inward).map(drop)
}

async fn copy_without<R, W>(sent: &InjectedSecrets, from: &mut R, to: &mut W) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut room = vec![0; 16 << 10];
    let (mut pending, mut out) = (Vec::new(), Vec::new());
    loop {
        let read = from.read(&mut room);
        let count = if pending.is_empty() {
            Some(read.await?)
        } else {
            tokio::time::timeout(HOLD, read).await.ok().transpose()?
        };
        pending.extend_from_slice(&room[..count.unwrap_or(0)]);
        // Nobody waits for ever for what may never come.
        let is_all = !matches!(count, Some(1..));
        sent.replace(&mut pending, &mut out, is_all);
        to.write_all(&out).await?;
        to.flush().await?;
        out.clear();
        if count == Some(0) {
            return to.shutdown().await;
        }
    }
}
