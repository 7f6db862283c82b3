! SPDX-License-Identifier: Apache-2.0 OR MIT

! Counts how often each of 100 words is in a list of 2000.
program words
  implicit none
  character(len=4) :: list(2000), wanted
  integer :: i, all

  do i = 1, size(list)
    write (list(i), '("w", i0)') mod(i, 100)
  end do
  all = 0
  do i = 0, 99
    write (wanted, '("w", i0)') i
    all = all + count_word(list, wanted)
  end do
  if (all == 0) then
    print *, 'none'
  end if
  print *, all

contains

  integer function count_word(list, wanted) result(n)
    character(len=4), intent(in) :: list(:), wanted
    integer :: i

    n = 0
    do i = 1, size(list)
      if (list(i) == wanted) then
        n = n + 1
      end if
    end do
  end function count_word

end program words
