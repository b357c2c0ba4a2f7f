# The emulated cuBLASLt and cuDNN by themselves, as the plans of src/kernels/cuda ask for them.
foreach(subject products convolutions graphs attention)
  lockstep_test(emulated_gpu.libraries.${subject} SOURCES libraries_${subject}_test.cpp ROOMS kernels
                LIBRARIES lockstep_emulated_gpu)
endforeach()
