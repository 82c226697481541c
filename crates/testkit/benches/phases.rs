use bastide::link::{Link, MuxLink};
use bastide::{Backend, Client, Command, CreateOptions, MachineSpec, SessionFolder, SessionId};
use bastide_local::LocalBackend;
use std::sync::Arc;
use std::time::Instant;
fn main() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let backend = Arc::new(LocalBackend::new(home.path()).unwrap());
    let rt =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    rt.block_on(async {
        let (mut a, mut b, mut c, mut d) = (vec![], vec![], vec![], vec![]);
        for _ in 0..200 {
            let t0 = Instant::now();
            let folder = SessionFolder::make(home.path(), SessionId::random()).await.unwrap();
            let booted = backend
                .boot(&folder, &MachineSpec::new("/workspace".parse().unwrap()))
                .await
                .unwrap();
            let t1 = Instant::now();
            let link = MuxLink::connect(booted.connection.unwrap()).await.unwrap();
            let t2 = Instant::now();
            link.open(bastide_proto::Request::Ping).await.unwrap().finish().await.unwrap();
            let t3 = Instant::now();
            drop(link);
            backend.destroy(&booted.machine).await.unwrap();
            let t4 = Instant::now();
            a.push(t1 - t0);
            b.push(t2 - t1);
            c.push(t3 - t2);
            d.push(t4 - t3);
        }
        for (n, v) in [("boot", &mut a), ("connect", &mut b), ("ping", &mut c), ("destroy", &mut d)]
        {
            v.sort();
            println!("{n} median {:?} p10 {:?}", v[v.len() / 2], v[v.len() / 10]);
        }
        let client = Client::new(backend.clone());
        let s = client.create(&Default::default(), CreateOptions::default()).await.unwrap();
        let mut e = vec![];
        for _ in 0..300 {
            let t = Instant::now();
            s.exec(Command::new(["true"])).await.unwrap();
            e.push(t.elapsed());
        }
        e.sort();
        println!("exec median {:?} p10 {:?}", e[150], e[30]);
        s.delete().await.unwrap();
    });
}
