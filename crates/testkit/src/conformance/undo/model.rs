//! Random work, and where it goes.

use std::collections::BTreeMap;

use bastide::Session;
use bastide::model::Manifest;
use futures::{StreamExt, TryStreamExt};

use super::journaled;
use crate::suite::{Context, Outcome, TrialError, say};

/// How many steps back the model remembers.
const LONGEST: usize = 150;

/// How many sessions there are at a time.
const AT_ONCE: usize = 5;

/// Files and what is in them.
type Files = BTreeMap<String, String>;

/// Numbers that are the same every time.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % limit
    }
}

/// A command, and what it makes of the files.
fn command(dice: &mut Rng, step: usize, files: &mut Files) -> String {
    let name = format!("d{}/f{}", dice.below(3), dice.below(4));
    let some = files.keys().nth(dice.below(files.len().max(1))).cloned();
    match (dice.below(6), some) {
        (0, Some(gone)) => {
            files.remove(&gone);
            format!("rm {gone}")
        }
        (1, Some(from)) if from != name => {
            let content = files.remove(&from).unwrap_or_default();
            files.insert(name.clone(), content);
            format!("mv {from} {name}")
        }
        (2, Some(there)) => {
            let content = files.entry(there.clone()).or_default();
            content.push_str(&format!("{step}\n"));
            format!("echo {step} >> {there}")
        }
        (3, _) => {
            let folder = dice.below(3);
            files.retain(|name, _| !name.starts_with(&format!("d{folder}/")));
            format!("rm -rf d{folder}; mkdir d{folder}")
        }
        (4, Some(there)) => {
            let content = files.get(&there).cloned().unwrap_or_default();
            files.insert(format!("{there}.copy"), content);
            format!("cp {there} {there}.copy")
        }
        _ => {
            files.insert(name.clone(), format!("{step}\n"));
            format!("echo {step} > {name}.new; mv {name}.new {name}")
        }
    }
}

async fn found(session: &Session) -> Result<Files, TrialError> {
    let mut files = Files::new();
    for path in session.files().glob("d*/*").await? {
        let content = session.files().read(&path).await?;
        let path = path.trim_start_matches(session.root().as_str()).trim_start_matches('/');
        files.insert(path.to_owned(), String::from_utf8(content.to_vec())?);
    }
    Ok(files)
}

/// Where the model is: the files after each command that counts, and where it was before undos.
struct Model {
    past: Vec<Files>,
    future: Vec<Vec<Files>>,
    /// The numbers of the points, and the files after each.
    points: Vec<(u64, Files)>,
}

impl Model {
    fn now(&self) -> Files {
        self.past.last().cloned().unwrap_or_default()
    }
}

pub(super) async fn goes_wherever_a_model_in_memory_goes(context: Context) -> Outcome {
    // Each step waits for the disk more than for anything else, so several sessions at once are not much slower than
    // one. Even so it is minutes for a thousand: that is for those who have the time.
    let (walks, steps) = match (context.full, context.backend.has_host_files()) {
        (true, true) => (5, 1_000),
        // Machines of their own take longer.
        (true, false) => (1, 1_000),
        (false, _) => (1, 200),
    };
    let context = &context;
    let all = (0..walks).map(|seed| walk(context, seed, steps));
    futures::stream::iter(all).buffer_unordered(AT_ONCE).try_collect().await
}

/// Goes so many random steps in a session of its own.
async fn walk(context: &Context, seed: u64, steps: usize) -> Outcome {
    let mut dice = Rng(200 + seed);
    let client = context.client();
    let session = journaled(context, &Manifest::default()).await?;
    say(&session, "mkdir d0 d1 d2").await?;
    let mut model =
        Model { past: vec![Files::new()], future: Vec::new(), points: vec![(1, Files::new())] };
    let mut next = 2;
    for step in 0..steps {
        let did = match dice.below(12) {
            0 | 1 if model.past.len() > 3 => {
                let steps = 1 + dice.below(2);
                session.journal().undo(steps).await?;
                model.future.push(model.past.clone());
                model.past.truncate(model.past.len() - steps);
                format!("undo {steps}")
            }
            2 if !model.future.is_empty() => {
                session.journal().redo().await?;
                model.past = model.future.pop().unwrap_or_default();
                "redo".to_owned()
            }
            3 if model.future.is_empty() => {
                let (point, then) = model.points[dice.below(model.points.len())].clone();
                let folder = format!("d{}", dice.below(3));
                session.journal().restore_path(&folder, &point.to_string()).await?;
                let mut files = model.now();
                files.retain(|name, _| !name.starts_with(&format!("{folder}/")));
                files.extend(
                    then.into_iter().filter(|(name, _)| name.starts_with(&format!("{folder}/"))),
                );
                model.past.push(files.clone());
                model.points.push((next, files));
                next += 1;
                format!("restore {folder}@{point}")
            }
            4 if step % 5 == 0 => {
                let (point, then) = model.points[dice.below(model.points.len())].clone();
                let mut forks = client.fork(&session, 1, Some(&point.to_string())).await?;
                let fork = forks.pop().ok_or("there is no fork")?;
                assert_eq!(
                    found(&fork).await?,
                    then,
                    "walk {seed}, step {step}: a fork at {point}"
                );
                fork.delete().await?;
                format!("fork at {point}")
            }
            _ => {
                let mut files = model.now();
                let line = command(&mut dice, step, &mut files);
                say(&session, &line).await?;
                // What was undone is given up, and so are its points.
                if !model.future.is_empty() {
                    let log = client.log(session.id())?;
                    let numbers: Vec<u64> = log.points.iter().map(|point| point.number).collect();
                    model.points.retain(|(number, _)| numbers.contains(number));
                    model.future.clear();
                }
                model.past.push(files.clone());
                model.points.push((next, files));
                next += 1;
                line
            }
        };
        assert_eq!(found(&session).await?, model.now(), "walk {seed}, step {step}: {did}");
        // Nobody goes back so far; the journal does not, either.
        let many = model.past.len().saturating_sub(LONGEST);
        model.past.drain(..many);
        let log = client.log(session.id())?;
        model.points.retain(|(number, _)| log.points.iter().any(|point| point.number == *number));
    }
    Ok(session.delete().await?)
}
