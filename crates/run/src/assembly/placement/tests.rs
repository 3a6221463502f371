//! Placement of the processes of a stage.

use rloom_engine::TensorParallel;

use super::*;

const RECIPE: &str = r#"
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 24
[data]
generator = "arithmetic"
[reward]
components = [{ kind = "exact" }]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "ppo"
steps = 1
groups_per_batch = 2
"#;

/// Roles of a stage of PPO, whose critic has a backbone of its own.
fn roles(overrides: &[&str], machine: Slots) -> Result<Vec<PlacedRole>, PlacementError> {
    let config = rloom_config::Config::from_text("recipe.toml", RECIPE, overrides);
    let config = config.map_err(|errors| errors.to_string()).unwrap();
    Ok(Placement::of(&config, &config.stages[0], &machine.into())?
        .map(|placement| placement.roles)
        .unwrap_or_default())
}

#[test]
fn each_rank_has_a_gpu_or_all_cores() {
    let torch = ["trainer.backend=torch", "trainer.ranks=2"];
    let both = [&torch[..], &["rollout.engine=vllm", "rollout.tensor_parallel=2"]].concat();
    let role = |role, slots: &[Range<usize>]| {
        let places = slots.iter().map(|slots| Place { machine: 0, slots: slots.clone() }).collect();
        PlacedRole { role: str::to_owned(role), processes: slots.len(), places }
    };
    assert_eq!(roles(&[], Slots::Gpus(0)), Ok(Vec::new()));
    let ranks = ["policy rank", "critic rank"].map(|name| role(name, &[0..1, 1..2]));
    assert_eq!(roles(&torch, Slots::Gpus(2)).as_deref(), Ok(&ranks[..]));
    let error = roles(&torch, Slots::Gpus(1)).unwrap_err().to_string();
    assert!(error.contains("need 2 GPUs; this machine offers 1"), "{error}");
    let [policy, critic] = ranks;
    assert_eq!(
        roles(&both, Slots::Gpus(4)),
        Ok(vec![policy, critic, role("server", std::slice::from_ref(&(2..4)))])
    );
    roles(&both, Slots::Gpus(3)).unwrap_err();
    let on_cores = roles(&torch, Slots::Cores(4)).unwrap();
    assert_eq!(on_cores[0], role("policy rank", &[0..4, 0..4]));
}

#[test]
fn reward_models_have_gpus_after_the_ranks_or_those_of_the_ranks() {
    let of = |keys: &str, machine| {
        let model =
            format!("reward.components=[{{kind='exact'}},{{kind='reward_model',model='m',ranks=2{keys}}}]");
        let overrides = ["trainer.backend=torch", "rollout.engine=vllm", &model];
        roles(&overrides, machine).map(|roles| {
            let slots = |role: PlacedRole| (role.role, role.places.into_iter().map(|place| place.slots));
            let own = roles.into_iter().map(slots).filter(|(role, _)| !role.ends_with("rank"));
            own.map(|(role, slots)| (role, slots.collect())).collect::<Vec<(String, Vec<_>)>>()
        })
    };
    let role = |name: &str, slots: &[Range<usize>]| (name.to_owned(), slots.to_vec());
    let server = |slots: Range<usize>| role("server", &[slots]);
    let apart = of("", Slots::Gpus(4)).unwrap();
    assert_eq!(apart, [server(3..4), role("reward reward_model", &[1..2, 2..3])]);
    let colocated = of(",colocate=true", Slots::Gpus(2)).unwrap();
    assert_eq!(colocated, [server(1..2), role("reward reward_model", &[0..1, 1..2])]);
    let on_cores = of("", Slots::Cores(2)).unwrap();
    assert_eq!(on_cores, [server(0..2), role("reward reward_model", &[0..2, 0..2])]);
    let too_few = roles(
        &[
            "reward.components=[{kind='exact'},{kind='reward_model',model='m',ranks=2}]",
            "trainer.backend=torch",
        ],
        Slots::Gpus(2),
    );
    let error = too_few.unwrap_err();
    assert!(matches!(error, PlacementError::RewardModel { .. }));
    let error = error.to_string();
    assert!(
        error.contains("2 processes of `reward reward_model` after 1 ranks and reward models need 3 GPUs; this machine offers 2"),
        "{error}"
    );
    // The hint.
    of(",colocate=true", Slots::Gpus(2)).unwrap();
    let fewer = "reward.components=[{kind='exact'},{kind='reward_model',model='m'}]";
    roles(&[fewer, "trainer.backend=torch"], Slots::Gpus(2)).unwrap();
}

fn servers(replicas: usize, tensor_parallel: usize, memory: f64) -> ServerSettings {
    let tensor_parallel = TensorParallel::Equal(tensor_parallel);
    ServerSettings { replicas, tensor_parallel, memory: Some(memory), ..ServerSettings::default() }
}

#[test]
fn servers_come_after_the_ranks_or_share_their_gpus() {
    let settings = servers(2, 2, 0.9);
    let of = |settings: &ServerSettings, ranks, gpus| -> Result<Vec<_>, _> {
        let places = server_places(settings, ranks, &Slots::Gpus(gpus).into())?;
        Ok::<_, PlacementError>(places.into_iter().map(|place| place.slots).collect())
    };
    assert_eq!(of(&settings, 4, 8).unwrap(), [4..6, 6..8]);
    let error: PlacementError = of(&settings, 4, 6).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PlacementError::Devices { .. }));
    assert!(text.contains("4 ranks and 2 servers × 2 GPUs need 8 GPUs; this machine offers 6"), "{text}");
    // The hint: fewer of each, or shared GPUs.
    for (fewer, ranks) in [(&settings, 2), (&servers(1, 2, 0.9), 4), (&servers(2, 1, 0.9), 4)] {
        of(fewer, ranks, 6).unwrap();
    }
    assert_eq!(of(&servers(2, 2, 0.45), 4, 6).unwrap(), [0..2, 2..4]);
    assert!(of(&servers(2, 2, 0.45), 4, 3).is_err());
    assert_eq!(of(&servers(1, 1, 0.45), 1, 1).unwrap().first(), Some(&(0..1)));
}

#[test]
fn servers_divide_the_cores() {
    let of = |replica: usize, replicas, cores| {
        let places = server_places(&servers(replicas, 1, 0.9), 0, &Slots::Cores(cores).into()).unwrap();
        places[replica].slots.clone()
    };
    assert_eq!((of(0, 2, 4), of(1, 2, 4)), (0..2, 2..4));
    assert_eq!((of(0, 3, 2), of(1, 3, 2), of(2, 3, 2)), (0..1, 0..1, 1..2));
    assert_eq!(of(0, 1, 2), 0..2);
}
/// Machine and slots.
type Spot = (usize, Range<usize>);

fn places(places: Result<Vec<Place>, PlacementError>) -> Vec<Spot> {
    places.unwrap().into_iter().map(|place| (place.machine, place.slots)).collect()
}

#[test]
fn servers_have_all_their_gpus_on_one_machine() {
    let offer = Offer::of_machines(vec![Slots::Gpus(3), Slots::Cores(64), Slots::Gpus(4)]);
    assert_eq!(places(rank_places(4, &offer)), [(0, 0..1), (0, 1..2), (0, 2..3), (2, 0..1)]);
    assert_eq!(places(server_places(&servers(1, 2, 0.9), 2, &offer)), [(2, 0..2)]);
    assert_eq!(places(server_places(&servers(2, 2, 0.9), 1, &offer)), [(0, 1..3), (2, 0..2)]);
    assert_eq!(server_places(&servers(3, 2, 0.9), 1, &offer).map(|places| places.len()), Ok(3));
    // One GPU of the first machine is left over.
    let error = server_places(&servers(3, 2, 0.9), 2, &offer).unwrap_err().to_string();
    assert!(error.contains("need 8 GPUs; the machines offer 3 + 0 + 4"), "{error}");
    assert_eq!(places(server_places(&servers(3, 2, 0.5), 4, &offer)), [(0, 0..2), (2, 0..2), (2, 2..4)]);
    rank_places(8, &offer).unwrap_err();
}

#[test]
fn processes_on_cores_are_spread_over_the_machines() {
    let offer = Offer::of_machines(vec![Slots::Cores(4), Slots::Cores(2)]);
    assert_eq!(places(rank_places(2, &offer)), [(0, 0..4), (1, 0..2)]);
    assert_eq!(places(rank_places(3, &offer)), [(0, 0..4), (0, 0..4), (1, 0..2)]);
    assert_eq!(places(server_places(&servers(1, 1, 0.9), 2, &offer)), [(1, 0..2)]);
    assert_eq!(places(server_places(&servers(3, 1, 0.9), 2, &offer)), [(1, 0..1), (1, 1..2), (0, 0..4)]);
}

/// Machines and cores of functions.
fn functions(overrides: &[&str], offer: &Offer) -> Vec<(String, Vec<usize>)> {
    let config = rloom_config::Config::from_text("recipe.toml", RECIPE, overrides);
    let config = config.map_err(|errors| errors.to_string()).unwrap();
    let roles = function_roles(&config, &config.stages[0], offer).unwrap().into_iter();
    roles.map(|role| (role.role, role.places.iter().map(|place| place.machine).collect())).collect()
}

const CLUSTER: [&str; 3] = ["cluster.launcher=wait", "cluster.nodes=2", "cluster.bind=127.0.0.1:7011"];
const REWARDS: &str = "reward.components=[{kind='exact'},{kind='python',name='a',function='a.py:f',workers=5},\
                       {kind='command',name='b',command=['b'],workers=1},{kind='python',name='c',function='caller:c'}]";

#[test]
fn functions_use_machines_without_gpus_evenly_by_cores() {
    let of = |machines: Vec<(Slots, usize)>, engines| {
        functions(&[&CLUSTER[..], &[REWARDS]].concat(), &Offer::of_cluster(machines, engines))
    };
    let role = |name: &str, machines: &[usize]| (name.to_owned(), machines.to_vec());
    let cores = |count| (Slots::Cores(count), count);
    let gpus = |count, cores| (Slots::Gpus(count), cores);
    // Functions of the caller's process are not placed.
    let even = [role("reward a", &[1, 0, 1, 0, 1]), role("reward b", &[0])];
    assert_eq!(of(vec![cores(4), cores(4)], 2), even);
    // Twice as many on the machine with twice as many cores.
    let weighted = [role("reward a", &[1, 1, 0, 1, 1]), role("reward b", &[0])];
    assert_eq!(of(vec![cores(4), cores(8)], 2), weighted);
    assert_eq!(of(vec![gpus(8, 64), cores(4)], 2), [role("reward a", &[1; 5]), role("reward b", &[1])]);
    assert_eq!(of(vec![gpus(8, 4), gpus(8, 8)], 2), weighted);
    assert_eq!(
        of(vec![cores(64), cores(64), cores(1)], 2),
        [role("reward a", &[2; 5]), role("reward b", &[2])]
    );
    // A run on one machine does not place them.
    assert_eq!(functions(&[REWARDS], &Slots::Cores(4).into()), []);
}

#[test]
fn engines_do_not_use_further_machines() {
    let cpu_nodes = |slots| Offer::of_cluster(vec![(slots, 4), (slots, 4), (Slots::Cores(64), 64)], 2);
    let offer = cpu_nodes(Slots::Cores(4));
    assert_eq!(places(rank_places(2, &offer)), [(0, 0..4), (1, 0..4)]);
    assert_eq!(places(server_places(&servers(2, 1, 0.9), 0, &offer)), [(1, 0..4), (0, 0..4)]);
    let error = rank_places(5, &cpu_nodes(Slots::Gpus(2))).unwrap_err().to_string();
    assert!(error.contains("the machines offer 2 + 2"), "{error}");
}

#[test]
fn the_critic_has_devices_of_its_own() {
    let apart = ["trainer.backend=torch", "trainer.ranks=2", "trainer.colocate_critic=false"];
    let slots = |overrides: &[&str], offer: &Offer| -> Result<Vec<Vec<Spot>>, PlacementError> {
        let config = rloom_config::Config::from_text("recipe.toml", RECIPE, overrides);
        let config = config.map_err(|errors| errors.to_string()).unwrap();
        let placement = Placement::of(&config, &config.stages[0], offer)?.unwrap();
        Ok(placement.roles.into_iter().map(|role| places(Ok(role.places))).collect())
    };
    let gpus = |count| Offer::of_machines(vec![Slots::Gpus(count)]);
    assert_eq!(slots(&apart, &gpus(4)).unwrap(), [[(0, 0..1), (0, 1..2)], [(0, 2..3), (0, 3..4)]]);
    let error = slots(&apart, &gpus(3)).unwrap_err().to_string();
    assert!(error.contains("4 ranks and no servers need 4 GPUs; this machine offers 3"), "{error}");
    // Servers come after the ranks of both models.
    let with_server = [&apart[..], &["rollout.engine=vllm"]].concat();
    assert_eq!(slots(&with_server, &gpus(5)).unwrap()[2], [(0, 4..5)]);
    let error = slots(&with_server, &gpus(4)).unwrap_err().to_string();
    assert!(error.contains("4 ranks and 1 servers × 1 GPUs need 5 GPUs; this machine offers 4"), "{error}");
    let two = Offer::of_machines(vec![Slots::Gpus(3), Slots::Gpus(1)]);
    assert_eq!(slots(&apart, &two).unwrap()[1], [(0, 2..3), (1, 0..1)]);
    // On processors: other machines, or other cores.
    let machines = |count| Offer::of_machines(vec![Slots::Cores(4); count]);
    assert_eq!(slots(&apart, &machines(2)).unwrap(), [[(0, 0..4), (0, 0..4)], [(1, 0..4), (1, 0..4)]]);
    let four = [[(0, 0..4), (1, 0..4)], [(2, 0..4), (3, 0..4)]];
    assert_eq!(slots(&apart, &machines(4)).unwrap(), four);
    assert_eq!(slots(&apart, &machines(1)).unwrap(), [[(0, 0..2), (0, 0..2)], [(0, 2..4), (0, 2..4)]]);
}

#[test]
fn servers_of_different_sizes_use_what_is_left_over() {
    let sized = |sizes: &[usize]| ServerSettings {
        replicas: sizes.len(),
        tensor_parallel: TensorParallel::Each(sizes.to_vec()),
        ..ServerSettings::default()
    };
    let offer = Offer::of_machines(vec![Slots::Gpus(3), Slots::Gpus(4)]);
    // The server with 4 GPUs has the second machine alone.
    let expected = [(0, 2..3), (1, 0..4), (0, 0..2)];
    assert_eq!(places(server_places(&sized(&[1, 4, 2]), 0, &offer)), expected);
    let error = server_places(&sized(&[2, 4, 2]), 0, &offer).unwrap_err().to_string();
    assert!(
        error.contains("0 ranks and servers of 2 + 4 + 2 GPUs need 8 GPUs; the machines offer 3 + 4"),
        "{error}"
    );
    // There are GPUs enough, but not on one machine.
    server_places(&sized(&[3, 3, 1]), 1, &offer).unwrap_err();
    // A server keeps its place while the number of servers changes.
    let whole = places(server_places(&sized(&[1, 2]), 0, &offer));
    for replicas in [1, 2, 3] {
        let scaled = places(server_places(&ServerSettings { replicas, ..sized(&[1, 2]) }, 0, &offer));
        assert_eq!(scaled.len(), replicas);
        assert!(scaled.iter().zip(&whole).all(|(now, before)| now == before), "{scaled:?} {whole:?}");
    }
    // Shares of cores follow the sizes.
    let cores = Offer::of_machines(vec![Slots::Cores(8)]);
    let shares = [(0, 0..4), (0, 4..6), (0, 6..8)];
    assert_eq!(places(server_places(&sized(&[2, 1, 1]), 0, &cores)), shares);
}

#[test]
fn several_servers_share_a_gpu_if_asked_to() {
    let halves =
        |replicas| ServerSettings { replicas, gpus_per_replica: Some(0.5), ..ServerSettings::default() };
    let offer = Offer::of_machines(vec![Slots::Gpus(2), Slots::Gpus(1)]);
    let expected = [(0, 1..2), (0, 1..2), (1, 0..1)];
    assert_eq!(places(server_places(&halves(3), 1, &offer)), expected);
    assert_eq!(server_places(&halves(6), 0, &offer).map(|places| places.len()), Ok(6));
    let error = server_places(&halves(6), 1, &offer).unwrap_err().to_string();
    assert!(
        error.contains("1 ranks and 6 servers × 0.5 GPUs need 4 GPUs; the machines offer 2 + 1"),
        "{error}"
    );
    // Beside a rank both servers of a GPU take at most half of its memory.
    let small = |memory| ServerSettings { memory: Some(memory), ..halves(2) };
    let one = Offer::from(Slots::Gpus(1));
    assert_eq!(places(server_places(&small(0.25), 1, &one)), [(0, 0..1), (0, 0..1)]);
    server_places(&small(0.3), 1, &one).unwrap_err();
}

/// No GPU is given to two processes unless they share it on request, and no server is split, whatever the machines are.
#[test]
fn no_device_is_given_twice() {
    let mut placed = 0;
    for seed in 0..2000_usize {
        let digit = |place: u32, base: usize| seed.wrapping_mul(2_654_435_761).wrapping_shr(place * 3) % base;
        let machines = (0..=digit(0, 4)).map(|machine| Slots::Gpus(digit(machine as u32 + 1, 6))).collect();
        let offer = Offer::of_machines(machines);
        let ranks = digit(6, 4);
        let sizes: Vec<usize> = (0..=digit(7, 3)).map(|server| 1 + digit(server as u32 + 3, 3)).collect();
        let settings = ServerSettings {
            replicas: sizes.len(),
            tensor_parallel: TensorParallel::Each(sizes.clone()),
            ..ServerSettings::default()
        };
        let (Ok(of_ranks), Ok(of_servers)) =
            (rank_places(ranks.max(1), &offer), server_places(&settings, ranks.max(1), &offer))
        else {
            continue;
        };
        if !offer.has_gpus() {
            continue;
        }
        placed += 1;
        let mut given = std::collections::BTreeSet::new();
        for (place, size) in of_ranks.iter().map(|place| (place, 1)).chain(of_servers.iter().zip(sizes)) {
            assert_eq!(place.slots.len(), size);
            let Slots::Gpus(gpus) = offer.machines()[place.machine] else { panic!() };
            assert!(place.slots.end <= gpus, "{place:?} of {offer:?}");
            assert!(place.slots.clone().all(|slot| given.insert((place.machine, slot))), "{place:?} twice");
        }
    }
    assert!(placed > 200, "{placed} placements");
}
