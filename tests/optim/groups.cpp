// Parameter groups: which factors a parameter gets.
#include "lockstep/optim/optimizer.h"

#include <boost/test/unit_test.hpp>

#include "optim/made_up_model.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(groups)

using namespace optim;

BOOST_FIXTURE_TEST_CASE(matrices_decay_and_vectors_do_not, UsualModel) {
  const auto factors = factors_of(model.params(), Decay::matrices, {});
  for (std::size_t i = 0; i < factors.size(); ++i) {
    BOOST_TEST(factors[i].lr == 1);
    BOOST_TEST(factors[i].decay == (model.params()[i]->value.shape().rank() >= 2 ? 1 : 0));
  }
}

BOOST_FIXTURE_TEST_CASE(all_decay_when_asked, UsualModel) {
  for (const ParamFactors& factors : factors_of(model.params(), Decay::all, {}))
    BOOST_TEST(factors.decay == 1);
}

BOOST_FIXTURE_TEST_CASE(the_first_matching_group_counts, UsualModel) {
  const std::vector<ParamGroup> groups = {{"hidden.bias", 4, 0.5}, {"hidden.*", 2, 3}, {"*.weight", 8, 0}};
  const auto factors = factors_of(model.params(), Decay::all, groups);
  // out.weight, hidden.weight, hidden.bias, norm.scale, embedding.weight
  const std::vector<double> lr = {8, 2, 4, 1, 8}, decay = {0, 3, 0.5, 1, 0};
  for (std::size_t i = 0; i < factors.size(); ++i) {
    BOOST_TEST(factors[i].lr == lr[i]);
    BOOST_TEST(factors[i].decay == decay[i]);
  }
}

BOOST_FIXTURE_TEST_CASE(a_group_cannot_make_exempt_vectors_decay, UsualModel) {
  const std::vector<ParamGroup> groups = {{"hidden.bias", 1, 5}};
  BOOST_TEST(factors_of(model.params(), Decay::matrices, groups)[2].decay == 0);
}

BOOST_FIXTURE_TEST_CASE(a_group_that_matches_nothing_is_an_error, UsualModel) {
  const std::vector<ParamGroup> groups = {{"hidden.*", 1, 1}, {"layer9.*", 2, 2}};
  BOOST_CHECK_EXCEPTION(factors_of(model.params(), Decay::all, groups), UsageError,
                        mentions("layer9.*", "no parameter"));
}

BOOST_FIXTURE_TEST_CASE(a_group_that_earlier_ones_hide_is_an_error, UsualModel) {
  const std::vector<ParamGroup> groups = {{"hidden.*", 1, 1}, {"hidden.bias", 2, 2}};
  BOOST_CHECK_EXCEPTION(factors_of(model.params(), Decay::all, groups), UsageError,
                        mentions("'hidden.bias'", "earlier"));
}

BOOST_FIXTURE_TEST_CASE(negative_factors_are_errors, UsualModel) {
  const std::vector<ParamGroup> lr = {{"*", -1, 1}}, decay = {{"*", 1, -0.5}};
  BOOST_CHECK_THROW(factors_of(model.params(), Decay::all, lr), UsageError);
  BOOST_CHECK_THROW(factors_of(model.params(), Decay::all, decay), UsageError);
}

BOOST_AUTO_TEST_CASE(names_are_those_of_the_configuration) {
  BOOST_CHECK(option::named<Decay>("matrices") == Decay::matrices);
  BOOST_CHECK(option::named<Decay>("all") == Decay::all);
  BOOST_CHECK_EXCEPTION(option::named<Decay>("none"), UsageError, mentions("none", "matrices", "all"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
