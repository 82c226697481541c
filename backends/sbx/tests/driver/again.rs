//! Sandboxes that are made again, and sign-ins that several sessions rely on.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_stays_while_another_session_relies_on_it_and_when_somebody_stores_it_to_stay() {
    let setting = Setting::new("0.45.1");
    let mut options = SbxOptions::new();
    options.oauth = vec!["openai".to_owned()];
    let client = setting.client(options);
    let manifest = Manifest::default();
    let made = || client.create(&manifest, CreateOptions::default());
    let has = || async { global::has_global_secret(&setting.sbx(), "openai", LONG).await.unwrap() };
    let (first, second) = (made().await.unwrap(), made().await.unwrap());
    first.delete().await.unwrap();
    assert!(has().await, "the second one relies on it");
    second.delete().await.unwrap();
    assert!(!has().await, "nobody needs it any more");
    let third = made().await.unwrap();
    bastide_sbx::keep_secret(&setting.path("home"), "openai").await.unwrap();
    global::set_global_secret(&setting.sbx(), "openai", "mine", LONG).await.unwrap();
    third.delete().await.unwrap();
    assert!(has().await, "it was stored to stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_made_as_its_origin_was_or_not_at_all() {
    let setting = Setting::new("0.45.1");
    let mut options = SbxOptions::new().network_allow(["example.com".to_owned()]);
    options.template = Some("my/image:1".to_owned());
    let made = setting.client(options);
    let mut create = CreateOptions::default();
    create.network = NetworkAccess::Bridge;
    let session = made.create(&Manifest::default(), create.clone()).await.unwrap();
    let other = setting.client(SbxOptions::new());
    let forks = other.fork(&session, 1, None).await.unwrap();
    let creates = setting.calls_of("create");
    assert!(creates.iter().all(|call| call.contains("--template my/image:1")), "{creates:?}");
    assert_eq!(setting.calls_of("policy allow").len(), 2);
    for fork in forks {
        fork.delete().await.unwrap();
    }
    session.delete().await.unwrap();
    let with_secret = setting.client(SbxOptions::new().secret("openai", "hidden"));
    let session = with_secret.create(&Manifest::default(), create).await.unwrap();
    let refused = other.fork(&session, 1, None).await.unwrap_err();
    assert!(refused.to_string().contains("the secret of openai"), "{refused}");
    session.delete().await.unwrap();
}

/// Removes every sandbox behind the back of whoever made it.
async fn remove_sandboxes(setting: &Setting) {
    for found in setting.sbx().list().await.unwrap() {
        let removed = std::process::Command::new(setting.stand_in.program())
            .args(["rm", "--force", &found.name])
            .output()
            .unwrap();
        assert!(removed.status.success(), "{removed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_its_sandbox() {
    let setting = Setting::new("0.45.1");
    let client = setting.client(SbxOptions::new());
    let options = CreateOptions::default().detached();
    let session = client.create(&Manifest::default(), options).await.unwrap();
    let id = session.id().clone();
    session.files().write("f", "kept").await.unwrap();
    drop(session);
    remove_sandboxes(&setting).await;
    let session = client.resume(&id).await.unwrap();
    assert_eq!(&*session.files().read("f").await.unwrap(), b"kept");
    session.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_whose_name_would_be_an_option_is_refused() {
    let setting = Setting::new("0.45.1");
    let folder = setting.path("ws:ro");
    fs::create_dir(&folder).unwrap();
    let extra_path_grants = vec![granted(&folder, false)];
    let manifest = Manifest { extra_path_grants, ..Manifest::default() };
    let client = setting.client(SbxOptions::new());
    let refused = client.create(&manifest, CreateOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("colon"), "{refused}");
    assert_eq!(setting.sbx().list().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_rules_are_missing_gets_them_before_anything_runs() {
    let setting = Setting::new("0.33.0");
    let client = setting.client(SbxOptions::new());
    let options = CreateOptions::default().detached();
    let session = client.create(&Manifest::default(), options).await.unwrap();
    let id = session.id().clone();
    drop(session);
    remove_sandboxes(&setting).await;
    // Another one is made, and its rule is not.
    setting.stand_in.fault("policy:1").unwrap();
    client.resume(&id).await.unwrap_err();
    setting.stand_in.fault("").unwrap();
    let session = client.resume(&id).await.unwrap();
    let rules = setting.stored("rules");
    assert_eq!(rules.len(), 1, "{rules:?}");
    assert_eq!((&rules[0]["decision"], &rules[0]["resources"][0]), (&"deny".into(), &"**".into()));
    session.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_listed_is_not_taken_for_gone_whatever_was_not_found() {
    let setting = Setting::new("0.45.1");
    let client = setting.client(SbxOptions::new());
    let session = client.create(&Manifest::default(), CreateOptions::default()).await.unwrap();
    let id = session.id().clone();
    setting.stand_in.fault("rm:not found").unwrap();
    let kept = session.delete().await.unwrap_err();
    assert!(kept.to_string().contains("not found"), "{kept}");
    assert_eq!(setting.sbx().list().await.unwrap().len(), 1);
    setting.stand_in.fault("").unwrap();
    client.delete(&id).await.unwrap();
    assert_eq!(setting.sbx().list().await.unwrap(), []);
}
