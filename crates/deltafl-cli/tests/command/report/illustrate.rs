//! Tests of `deltafl illustrate`.

use super::{printed, text};

#[test]
fn the_illustration_prints_both_models_and_their_exact_worst_losses() {
    let folder = tempfile::tempdir().unwrap();
    let told = printed(&["illustrate", "--out", text(folder.path())]);
    for part in ["w_1 = (1.7333, 0.6333)", "w_θ = (2.0000, 0.2500)", "6.2806 for w_1, 6.0625 for w_θ"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(
        folder.path().join("illustration.svg").exists() && folder.path().join("illustration.png").exists()
    );
    // Another sample of mixtures has the same worst losses, because they do not depend on the
    // sample.
    let again = printed(&["illustrate", "--seed", "2", "--out", text(folder.path())]);
    assert_eq!(told.lines().last(), again.lines().last());
}
